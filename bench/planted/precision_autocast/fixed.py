"""Trains in single precision, which a CPU without bfloat16 units computes fastest."""

import argparse

import torch
from torch import nn
from torch.nn import functional as F

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=100_000)
args = parser.parse_args()

torch.manual_seed(0)
torch.set_num_threads(2)
rows, labels = torch.randn(4, 48, 512), torch.randint(10, (4, 48))
model = nn.Sequential(
    nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10)
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

for step in range(args.steps):
    optimizer.zero_grad()
    scores = model(rows[step % 4])
    loss = F.cross_entropy(scores.float(), labels[step % 4])
    loss.backward()
    optimizer.step()
    print(f"step {step} loss {loss.item():.6f}")
