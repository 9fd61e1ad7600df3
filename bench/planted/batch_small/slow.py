"""Trains a deep network on eight rows at a time, which is what once fitted on an old card.

The weights are read, and updated, as often for eight rows as for many.
"""

import argparse

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

BATCH = 8
WIDTH, LAYERS = 1536, 6

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=100_000)
args = parser.parse_args()

torch.manual_seed(0)
torch.set_num_threads(2)
data = TensorDataset(torch.randn(2048, WIDTH), torch.randint(10, (2048,)))
loader = DataLoader(data, batch_size=BATCH)  # culprit: batch
hidden = [part for _ in range(LAYERS) for part in (nn.Linear(WIDTH, WIDTH), nn.ReLU())]
model = nn.Sequential(*hidden, nn.Linear(WIDTH, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

step = 0
while step < args.steps:
    for rows, labels in loader:
        loss = F.cross_entropy(model(rows), labels)  # cost: batch
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step} loss {loss.item():.6f}")
        step += 1
        if step == args.steps:
            break
