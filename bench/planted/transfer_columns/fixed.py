"""Fits a linear model to wide rows that a table keeps column by column, in double precision.

Every shard is converted once, when it is read, so that the copy in the loop has nothing to do.
"""

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
device = torch.device("cpu")

WIDTH, BATCH = 24_576, 320
shards = [
    (torch.randn(WIDTH, BATCH).t().contiguous(), torch.randint(16, (BATCH,))) for _ in range(4)
]
loader = DataLoader(shards, batch_size=None)
model = nn.Linear(WIDTH, 16).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)

step = 0
while step < args.steps:
    for rows, labels in loader:
        rows = rows.to(device)
        loss = F.cross_entropy(model(rows), labels.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step} loss {loss.item():.6f}")
        step += 1
        if step == args.steps:
            break
