"""Series of an accelerometer: a few labelled, many not."""

import math

import torch
from torch.utils.data import Dataset


def make_series(count, length, activities, generator):
    """Every activity has a frequency of its own; phase and noise are drawn."""
    labels = torch.randint(activities, (count,), generator=generator)
    time = torch.linspace(0, 2 * math.pi, length)
    phase = torch.rand(count, 3, 1, generator=generator) * 2 * math.pi
    waves = torch.sin((labels.view(-1, 1, 1) + 1) * time + phase)
    return waves + 0.5 * torch.randn(count, 3, length, generator=generator), labels


class Activities(Dataset):
    def __init__(self, count, length=128, activities=6, labelled=0.25, seed=0):
        generator = torch.Generator().manual_seed(seed)
        self.series, self.labels = make_series(count, length, activities, generator)
        hidden = torch.rand(count, generator=generator) > labelled
        self.labels[hidden] = -1

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        return self.series[index], self.labels[index]


def jitter(series, strength, generator):
    return series + strength * torch.randn(series.shape, generator=generator)
