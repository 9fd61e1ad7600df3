"""Forecasts how much power households will use tomorrow from the eighteen days before.

A step takes thirty-two households.
"""

import argparse
from dataclasses import dataclass

import torch
from torch import nn


@dataclass(frozen=True)
class Hyperparameters:
    batch_size: int = 32
    hours: int = 432
    features: int = 6
    hidden: int = 40
    learning_rate: float = 0.02


class Forecaster(nn.Module):
    def __init__(self, hp):
        super().__init__()
        self.lstm = nn.LSTM(hp.features, hp.hidden, num_layers=3, batch_first=True)
        self.out = nn.Linear(hp.hidden, 24)

    def forward(self, recent):
        states, _ = self.lstm(recent)
        return self.out(states[:, -1])


def draw_batches(past, days, hp):
    """Batches without end, each pass over the households in another order."""
    while True:
        for rows in torch.randperm(len(past)).split(hp.batch_size):
            yield past[rows], days[rows]


def main(steps, hp):
    past = torch.randn(2048, hp.hours, hp.features)
    days = torch.randn(2048, 24) + past[:, -24:, 0]
    model = Forecaster(hp)
    criterion = nn.SmoothL1Loss()
    optimizer = torch.optim.SGD(model.parameters(), lr=hp.learning_rate)
    batches = draw_batches(past, days, hp)
    for step in range(steps):
        recent, day = next(batches)
        loss = criterion(model(recent), day)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        print(f"step={step} loss={loss.item():.6f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100_000)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(2)
    main(arguments.steps, Hyperparameters())
