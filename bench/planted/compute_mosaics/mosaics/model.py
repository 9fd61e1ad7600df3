"""A transformer that fills lost tiles in."""

import torch
from torch import nn
from torch.nn import functional as F


class Layer(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        batch, tiles, width = x.shape
        parts = self.qkv(self.first(x)).view(batch, tiles, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(query, key, value)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, tiles, width))
        return x + self.down(F.relu(self.up(self.second(x))))


class Restorer(nn.Module):
    def __init__(self, tiles, colours, width=192, heads=6, depth=2):
        super().__init__()
        self.colours = nn.Embedding(colours + 1, width)
        self.places = nn.Parameter(0.02 * torch.randn(tiles, width))
        self.layers = nn.ModuleList(Layer(width, heads) for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, colours)

    def forward(self, tiles):
        x = self.colours(tiles) + self.places
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))
