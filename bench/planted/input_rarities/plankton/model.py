"""A mixer over the rows of a crop, with a head for the species."""

import torch
from torch import nn

from plankton.data import SIDE, SPECIES


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.rows_norm = nn.LayerNorm(width)
        self.rows = nn.Linear(SIDE, SIDE)
        self.norm = nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, width)
        )

    def forward(self, x):
        x = x + self.rows(self.rows_norm(x).transpose(1, 2)).transpose(1, 2)
        return x + self.mlp(self.norm(x))


class PlanktonMixer(nn.Module):
    def __init__(self, width=96, depth=2):
        super().__init__()
        self.stem = nn.Linear(SIDE, width)
        self.blocks = nn.Sequential(*(Block(width) for _ in range(depth)))
        self.head = nn.Linear(width, SPECIES)

    def forward(self, pixels):
        rows = pixels.view(len(pixels), SIDE, SIDE)
        return self.head(torch.relu(self.blocks(self.stem(rows))).mean(dim=1))
