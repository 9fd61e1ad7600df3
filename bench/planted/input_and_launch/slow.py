"""Predicts from events: their times are parsed from text, and their windows are summed in a loop.

Two things are wrong; the parsing costs more.
"""

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
        self.lines = [" ".join(f"{source.random():.5f}" for _ in range(EVENTS)) for _ in range(512)]

    def __len__(self):
        return 10_000_000

    def __getitem__(self, index):
        line = self.lines[index % 512]
        times = [float(time) for time in line.split()]  # culprit: input
        return torch.tensor(times), index % 4


class Summed(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(EVENTS))
        self.body = nn.Sequential(nn.Linear(EVENTS + WINDOWS, 768), nn.ReLU(), nn.Linear(768, 4))

    def forward(self, times):
        times = times * self.scale
        sums = torch.zeros(len(times), WINDOWS)
        size = EVENTS // WINDOWS
        for window in range(WINDOWS):
            part = times[:, window * size : (window + 1) * size]
            sums[:, window] = part.sum(dim=1)  # culprit: launch
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
