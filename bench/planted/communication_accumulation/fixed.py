"""Trains on several ranks (torchrun) and adds up the gradients of four small batches.

The gradients are exchanged after the last of the four.
"""

import argparse
import contextlib

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

ACCUMULATE, BATCH, WIDTH = 4, 16, 1024


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100_000)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    layers = [part for _ in range(3) for part in (nn.Linear(WIDTH, WIDTH), nn.ReLU())]
    model = DistributedDataParallel(nn.Sequential(*layers, nn.Linear(WIDTH, 10)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    torch.manual_seed(rank)
    rows, labels = torch.randn(8, BATCH, WIDTH), torch.randint(10, (8, BATCH))
    for step in range(args.steps):
        optimizer.zero_grad()
        for part in range(ACCUMULATE):
            batch = (step * ACCUMULATE + part) % 8
            waits = model.no_sync() if part < ACCUMULATE - 1 else contextlib.nullcontext()
            with waits:
                loss = F.cross_entropy(model(rows[batch]), labels[batch]) / ACCUMULATE
                loss.backward()
        optimizer.step()
        if rank == 0:
            print(f"step {step} loss {loss.item():.6f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
