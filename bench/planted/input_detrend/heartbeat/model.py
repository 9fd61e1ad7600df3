"""How is a heart rate read from a signal?"""

from torch import nn


def make_model(channels=64):
    layers = [nn.Conv1d(1, channels, 7, padding=3), nn.ReLU()]
    for _ in range(2):
        layers += [nn.Conv1d(channels, channels, 7, padding=3), nn.ReLU()]
    return nn.Sequential(
        *layers, nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(channels, 1), nn.Flatten(0)
    )
