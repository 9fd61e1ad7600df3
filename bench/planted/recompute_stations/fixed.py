"""Learns fine maps of the temperature from what a network of weather stations measures.

The stations are spread over the map by their distances when the model is made.
"""

import argparse
from dataclasses import dataclass

import torch
from torch import nn


@dataclass
class Settings:
    stations: int = 768
    side: int = 64
    reach: float = 0.05
    channels: int = 12
    batch: int = 8
    lr: float = 0.01


class Downscaler(nn.Module):
    def __init__(self, settings, places):
        super().__init__()
        self.settings = settings
        axis = torch.linspace(0, 1, settings.side)
        self.register_buffer("grid", torch.cartesian_prod(axis, axis))
        self.register_buffer("places", places)
        self.register_buffer("weights", self.influence().T)
        self.refine = nn.Sequential(
            nn.Conv2d(1, settings.channels, 5, padding=2),
            nn.GELU(),
            nn.Conv2d(settings.channels, settings.channels, 3, padding=1),
            nn.GELU(),
            nn.Conv2d(settings.channels, 1, 3, padding=1),
        )

    def influence(self):
        distances = torch.cdist(self.grid, self.places)
        return torch.softmax(-((distances / self.settings.reach) ** 2), dim=1)

    def forward(self, measured):
        side = self.settings.side
        coarse = measured @ self.weights
        coarse = coarse.reshape(-1, 1, side, side)
        return coarse + self.refine(coarse)


def make_weather(settings, days):
    measured = torch.randn(days, settings.batch, settings.stations)
    maps = torch.randn(days, settings.batch, 1, settings.side, settings.side)
    return list(zip(measured, maps, strict=True))


def fit(settings, steps):
    torch.manual_seed(0)
    torch.set_num_threads(2)
    model = Downscaler(settings, torch.rand(settings.stations, 2))
    weather = make_weather(settings, 10)
    optimizer = torch.optim.SGD(model.parameters(), lr=settings.lr)
    for step in range(steps):
        measured, truth = weather[step % len(weather)]
        loss = (model(measured) - truth).abs().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"{step}\t{loss.item():.6f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=100_000)
    fit(Settings(), parser.parse_args().steps)
