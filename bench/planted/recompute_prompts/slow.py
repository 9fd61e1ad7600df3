"""Compares pictures with the names of their classes; the encoder of the names is frozen.

Names and encoder never change, and still every step encodes them again.
"""

import argparse

import torch
from torch import nn
from torch.nn import functional as F

CLASSES, WORDS, LENGTH, WIDTH, BATCH = 400, 1000, 12, 192, 384


class NameEncoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.body = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, ids):
        return F.normalize(self.body(self.embed(ids)).mean(dim=1), dim=1)  # cost: recompute


def train(pictures, labels, names, steps):
    encoder = NameEncoder().requires_grad_(False).eval()
    network = nn.Sequential(nn.Linear(768, 1024), nn.ReLU(), nn.Linear(1024, WIDTH))
    optimizer = torch.optim.SGD(network.parameters(), lr=0.05)
    for step in range(steps):
        with torch.no_grad():
            prototypes = encoder(names)  # culprit: recompute
        features = F.normalize(network(pictures[step % 4]), dim=1)
        loss = F.cross_entropy(features @ prototypes.T / 0.1, labels[step % 4])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step} loss {loss.item():.6f}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100_000)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(2)
    pictures, labels = torch.randn(4, BATCH, 768), torch.randint(CLASSES, (4, BATCH))
    train(pictures, labels, torch.randint(WORDS, (CLASSES, LENGTH)), args.steps)


if __name__ == "__main__":
    main()
