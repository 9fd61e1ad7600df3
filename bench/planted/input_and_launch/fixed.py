"""Predicts from events: their times are parsed once, and all windows are summed at once."""

import argparse
import random

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

EVENTS, WINDOWS, BATCH = 512, 64, 256


class Events(Dataset):
    def __init__(self):
        source = random.Random(0)
        lines = [" ".join(f"{source.random():.5f}" for _ in range(EVENTS)) for _ in range(512)]
        self.rows = [torch.tensor([float(time) for time in line.split()]) for line in lines]

    def __len__(self):
        return 10_000_000

    def __getitem__(self, index):
        return self.rows[index % 512], index % 4


class Summed(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(EVENTS))
        self.body = nn.Sequential(nn.Linear(EVENTS + WINDOWS, 768), nn.ReLU(), nn.Linear(768, 4))

    def forward(self, times):
        times = times * self.scale
        sums = times.unflatten(1, (WINDOWS, EVENTS // WINDOWS)).sum(dim=2)
        return self.body(torch.cat([times, sums], dim=1))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100_000)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(2)
    model = Summed()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = DataLoader(Events(), batch_size=BATCH)
    for step, (times, labels) in zip(range(args.steps), loader, strict=False):
        loss = F.cross_entropy(model(times), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step} loss {loss.item():.6f}")


if __name__ == "__main__":
    main()
