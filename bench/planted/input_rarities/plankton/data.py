"""Crops from a plankton camera: far over a million, very unevenly spread over the species."""

import numpy as np
import torch
from torch.utils.data import Dataset

SPECIES = 48
SIDE = 24


class Crops(Dataset):
    """The crops of one cruise; the label of each is known, its pixels come from the archive."""

    def __init__(self, crops, archive=2048, seed=0):
        rng = np.random.RandomState(seed)
        share = 1.0 / np.arange(1, SPECIES + 1) ** 1.3
        self.labels = rng.choice(SPECIES, size=crops, p=share / share.sum())
        generator = torch.Generator().manual_seed(seed)
        self.archive = torch.rand(archive, SIDE * SIDE, generator=generator)
        self.shapes = torch.randn(SPECIES, SIDE * SIDE, generator=generator)

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        label = int(self.labels[index])
        pixels = self.archive[index % len(self.archive)] + 0.3 * self.shapes[label]
        if index % 2:
            pixels = pixels.view(SIDE, SIDE).flip(1).flatten()
        return {"pixels": pixels, "label": label, "crop": int(index)}


def collate(items):
    return {
        "pixels": torch.stack([item["pixels"] for item in items]).sub_(0.5),
        "label": torch.tensor([item["label"] for item in items]),
        "crop": torch.tensor([item["crop"] for item in items]),
    }
