"""Trains on several ranks (torchrun); the first one also watches the spectrum of the weights.

The others wait for it at every exchange of gradients.
"""

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

BATCH, WIDTH = 96, 384


def describe(model):
    largest = [
        torch.linalg.svdvals(weight).max().item()  # culprit: straggler
        for name, weight in model.named_parameters()
        if name.endswith("1.weight")
    ]
    return max(largest)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100_000)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    first = nn.Sequential(nn.Linear(2048, WIDTH), nn.Linear(WIDTH, WIDTH), nn.ReLU())
    model = DistributedDataParallel(nn.Sequential(first, nn.Linear(WIDTH, 10)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    torch.manual_seed(rank)
    rows, labels = torch.randn(8, BATCH, 2048), torch.randint(10, (8, BATCH))
    for step in range(args.steps):
        loss = F.cross_entropy(model(rows[step % 8]), labels[step % 8])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0:
            with torch.no_grad():
                norm = describe(model.module[0])  # cost: straggler
            print(f"step {step} loss {loss.item():.6f} norm {norm:.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
