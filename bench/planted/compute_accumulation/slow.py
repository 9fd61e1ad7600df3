"""Trains with gradients that add up over four batches before each update: nothing is wrong."""

import argparse

import torch
from torch import nn
from torch.nn import functional as F


def read_batches(rows, labels):
    while True:
        yield from zip(rows, labels, strict=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--accumulate", type=int, default=4)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(2)
    batches = read_batches(torch.randn(16, 384, 768), torch.randint(10, (16, 384)))
    model = nn.Sequential(
        nn.Linear(768, 768), nn.ReLU(), nn.Linear(768, 768), nn.ReLU(), nn.Linear(768, 10)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    for step in range(args.steps):
        optimizer.zero_grad()
        total = 0.0
        for _ in range(args.accumulate):
            rows, labels = next(batches)
            loss = F.cross_entropy(model(rows), labels) / args.accumulate
            loss.backward()
            total += loss.item()
        optimizer.step()
        print(f"update {step} loss {total:.6f}")


if __name__ == "__main__":
    main()
