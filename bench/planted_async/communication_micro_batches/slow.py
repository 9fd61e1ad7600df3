"""Fits an autoencoder on two ranks (torchrun); four small batches make one step.

The gradients are exchanged after each of the four, although only their sum is needed.
"""

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

ACCUMULATE, BATCH, WIDTH, BATCHES = 4, 16, 512, 8
device = torch.accelerator.current_accelerator()


def build_model():
    layers = [part for _ in range(3) for part in (nn.Linear(WIDTH, WIDTH), nn.ReLU())]
    return nn.Sequential(*layers, nn.Linear(WIDTH, WIDTH))


def train(rank, steps):
    torch.manual_seed(0)
    model = DistributedDataParallel(build_model().to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    torch.manual_seed(rank)
    rows = torch.randn(BATCHES, BATCH, WIDTH, device=device)
    for step in range(steps):
        optimizer.zero_grad()
        for part in range(ACCUMULATE):
            batch = rows[(step * ACCUMULATE + part) % BATCHES]
            loss = nn.functional.mse_loss(model(batch), batch) / ACCUMULATE
            loss.backward()  # culprit: communication
        optimizer.step()
    if rank == 0:
        print(f"loss {loss.item():.6f}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100_000)
    args = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("fakeccl")
    train(dist.get_rank(), args.steps)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
