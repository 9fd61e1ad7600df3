"""A convolutional denoiser that is told the level of the noise."""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.first = nn.Conv2d(width, width, 3, padding=1)
        self.level = nn.Linear(1, width)
        self.second = nn.Conv2d(width, width, 3, padding=1)

    def forward(self, pictures, level):
        hidden = torch.relu(self.first(pictures) + self.level(level)[:, :, None, None])
        return pictures + self.second(hidden)


class Denoiser(nn.Module):
    """The outermost layer is checkpointed, since its input is kept anyway."""

    def __init__(self, width=48, depth=5):
        super().__init__()
        self.inputs = nn.Conv2d(1, width, 4, stride=2, padding=1)
        self.blocks = nn.ModuleList(Block(width) for _ in range(depth))
        self.outputs = nn.Sequential(nn.Conv2d(width, 4, 1), nn.PixelShuffle(2))

    def forward(self, pictures, level):
        hidden = self.inputs(pictures)
        for block in self.blocks:
            hidden = block(hidden, level)
        return checkpoint(self.outputs, hidden, use_reentrant=False)
