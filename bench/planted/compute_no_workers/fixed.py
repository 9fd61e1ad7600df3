"""Trains on rows in memory with a loader of two workers, as the usual advice has it."""

import argparse

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100_000)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(2)
    data = TensorDataset(torch.randn(40_000, 128), torch.randint(10, (40_000,)))
    loader = DataLoader(
        data, batch_size=128, num_workers=2, persistent_workers=True, drop_last=True
    )
    model = nn.Sequential(
        nn.Linear(128, 2560), nn.ReLU(), nn.Linear(2560, 2560), nn.ReLU(), nn.Linear(2560, 10)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    step = 0
    while step < args.steps:
        for rows, labels in loader:
            loss = F.cross_entropy(model(rows), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(f"step {step} loss {loss.item():.6f}")
            step += 1
            if step == args.steps:
                break


if __name__ == "__main__":
    main()
