"""Recurrent summary of the last days, then a head for all hours ahead."""

import torch
from torch import nn


class LoadForecaster(nn.Module):
    def __init__(self, features, hours, quantiles, width=160, depth=3):
        super().__init__()
        self.hours, self.quantiles = hours, quantiles
        layers = [nn.Linear(features, width), nn.ReLU()]
        for _ in range(depth):
            layers += [nn.Linear(width, width), nn.LayerNorm(width), nn.ReLU()]
        self.days = nn.Sequential(*layers)
        self.recent = nn.Linear(width, width)
        self.head = nn.Linear(2 * width, hours * quantiles)

    def forward(self, history):
        states = self.days(history)
        summary = torch.cat([states.mean(dim=1), torch.tanh(self.recent(states[:, -1]))], dim=1)
        return self.head(summary).view(-1, self.hours, self.quantiles)
