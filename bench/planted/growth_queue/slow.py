"""Learns by contrast with the rows of earlier steps, which wait in a queue that nobody shortens."""

import argparse

import torch
from torch import nn
from torch.nn import functional as F

BATCH, WIDTH = 128, 128


class Contrast:
    def __init__(self):
        self.network = nn.Sequential(
            nn.Linear(512, 1024),
            nn.ReLU(),
            nn.Linear(1024, 1024),
            nn.ReLU(),
            nn.Linear(1024, WIDTH),
        )
        self.optimizer = torch.optim.SGD(self.network.parameters(), lr=0.05)
        self.queue = F.normalize(torch.randn(BATCH, WIDTH), dim=1)

    def step(self, rows):
        queries = F.normalize(self.network(rows), dim=1)
        keys = F.normalize(rows[:, :WIDTH], dim=1)
        near = (queries * keys).sum(dim=1, keepdim=True)
        scores = torch.cat([near, queries @ self.queue.T], dim=1)  # cost: growth
        loss = F.cross_entropy(scores / 0.1, torch.zeros(BATCH, dtype=torch.long))
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.queue = torch.cat([self.queue, keys])  # culprit: growth
        return loss.item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100_000)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(2)
    batches = torch.randn(16, BATCH, 512)
    contrast = Contrast()
    for step in range(args.steps):
        print(f"step {step} loss {contrast.step(batches[step % 16]):.6f}")


if __name__ == "__main__":
    main()
