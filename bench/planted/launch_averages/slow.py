"""Smooths series with an exponential average before a network reads them.

The average is computed instant by instant.
"""

import argparse

import torch
from torch import nn
from torch.nn import functional as F

INSTANTS, CHANNELS, KEEP = 256, 16, 0.9


class Smoothed(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Linear(CHANNELS, CHANNELS)
        self.body = nn.Sequential(
            nn.Flatten(), nn.Linear(INSTANTS * CHANNELS, 512), nn.ReLU(), nn.Linear(512, 8)
        )

    def smooth(self, series):
        state = torch.zeros_like(series[:, 0])
        states = []
        for instant in range(INSTANTS):
            state = KEEP * state + (1 - KEEP) * series[:, instant]  # culprit: launch
            states.append(state)
        return torch.stack(states, dim=1)

    def forward(self, series):
        return self.body(self.smooth(self.scale(series)))


class Trainer:
    def __init__(self, model):
        self.model = model
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step(self, series, labels):
        self.optimizer.zero_grad()
        loss = F.cross_entropy(self.model(series), labels)
        loss.backward()
        self.optimizer.step()
        return loss.item()

    def fit(self, batches, steps):
        for step in range(steps):
            print(f"step {step} loss {self.step(*batches[step % len(batches)]):.6f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100_000)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(2)
    made = [(torch.randn(192, INSTANTS, CHANNELS), torch.randint(8, (192,))) for _ in range(4)]
    Trainer(Smoothed()).fit(made, args.steps)
