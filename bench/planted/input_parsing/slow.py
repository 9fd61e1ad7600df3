"""Classifies rows of measurements that are kept as lines of text.

Every row is parsed again each time it is asked for.
"""

import argparse
import random

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=100_000)
args = parser.parse_args()

torch.manual_seed(0)
torch.set_num_threads(2)


class Measurements(Dataset):
    def __init__(self, rows=256, features=320):
        source = random.Random(0)
        self.lines = [
            ",".join(f"{source.gauss(0, 1):.4f}" for _ in range(features)) for _ in range(rows)
        ]

    def __len__(self):
        return 10_000_000

    def __getitem__(self, index):
        line = self.lines[index % len(self.lines)]
        values = [float(value) for value in line.split(",")]  # culprit: input
        return torch.tensor(values), index % 10


loader = DataLoader(Measurements(), batch_size=256)
model = nn.Sequential(
    nn.Linear(320, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10)
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

for step, (rows, labels) in enumerate(loader):
    if step == args.steps:
        break
    loss = F.cross_entropy(model(rows), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step} loss {loss.item():.6f}")
