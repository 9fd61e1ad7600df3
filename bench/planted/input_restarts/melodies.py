"""Melodies that wander up and down the scale."""

import torch
from torch.utils.data import Dataset


class Melodies(Dataset):
    """Two transpositions of one melody."""

    def __init__(self, count, length, notes):
        generator = torch.Generator().manual_seed(2)
        steps = torch.randint(-2, 3, (count, length), generator=generator)
        self.walks = steps.cumsum(1)
        self.notes = notes

    def __len__(self):
        return len(self.walks)

    def __getitem__(self, index):
        walk = self.walks[index]
        low, high = torch.randint(self.notes, (2,)).tolist()
        return (walk + low) % self.notes, (walk + high) % self.notes
