"""A small vision transformer over the fields of a weather model."""

import math

import torch
from torch import nn


class HourEmbedding(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.project = nn.Linear(2, width)

    def forward(self, hour):
        angle = hour * (2 * math.pi / 24)
        return self.project(torch.stack([angle.sin(), angle.cos()], dim=-1))


class Downscaler(nn.Module):
    """Reads patches of all fields and predicts the rain at every patch."""

    def __init__(self, fields, size, patch=16, width=96, depth=3, heads=4):
        super().__init__()
        cells = (size // patch) ** 2
        self.patches = nn.Conv2d(fields, width, patch, stride=patch)
        self.position = nn.Parameter(0.02 * torch.randn(1, cells, width))
        self.hour = HourEmbedding(width)
        layer = nn.TransformerEncoderLayer(
            width, heads, 2 * width, dropout=0.0, batch_first=True, norm_first=True
        )
        self.body = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.head = nn.Linear(width, 1)

    def forward(self, fields, hour):
        cells = self.patches(fields).flatten(2).transpose(1, 2)
        cells = cells + self.position + self.hour(hour).unsqueeze(1)
        return self.head(self.body(cells)).squeeze(-1)
