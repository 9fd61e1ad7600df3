"""Trains a wide network on batches that are ready: nothing is wrong here."""

import argparse

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=100_000)
args = parser.parse_args()

torch.manual_seed(0)
torch.set_num_threads(2)
batches = [(torch.randn(512, 1024), torch.randint(10, (512,))) for _ in range(8)]
loader = DataLoader(batches, batch_size=None)
model = nn.Sequential(
    nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10)
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
