"""Tiles of maps, kept as bytes."""

import torch
from torch.utils.data import Dataset


class MapTiles(Dataset):
    def __init__(self, count, side, kinds):
        generator = torch.Generator().manual_seed(5)
        self.kinds = torch.randint(kinds, (count,), generator=generator)
        noise = torch.randint(0, 120, (64, 3, side, side), dtype=torch.uint8, generator=generator)
        self.noise = noise

    def __len__(self):
        return len(self.kinds)

    def __getitem__(self, index):
        kind = self.kinds[index]
        tile = self.noise[index % len(self.noise)].float().div_(255)
        tile[:, :: int(kind) + 2] += 0.3
        return tile, kind
