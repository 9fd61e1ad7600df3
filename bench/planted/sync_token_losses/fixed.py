"""Trains a tagger and sums the losses of all tokens where they are.

One number leaves the tensor per step.
"""

import argparse

import torch
from torch import nn
from torch.nn import functional as F

WORDS, TAGS, TOKENS = 3000, 16, 8192

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=100_000)
args = parser.parse_args()

torch.manual_seed(0)
torch.set_num_threads(2)
words = torch.randint(WORDS, (4, TOKENS))
model = nn.Sequential(
    nn.Embedding(WORDS, 128), nn.Linear(128, 192), nn.ReLU(), nn.Linear(192, TAGS)
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)

for step in range(args.steps):
    ids = words[step % 4]
    losses = F.cross_entropy(model(ids), ids % TAGS, reduction="none")
    optimizer.zero_grad()
    losses.mean().backward()
    optimizer.step()

    total = losses.detach().sum().item()
    print(f"step {step} loss {total / TOKENS:.6f}")
