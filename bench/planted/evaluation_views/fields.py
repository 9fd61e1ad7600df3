"""Satellite pictures of fields, the network that looks at them, and its score."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import Dataset


class FieldPictures(Dataset):
    """Rectangles in shades of green; where two meet is an edge. Made once, kept in memory."""

    def __init__(self, count, side, seed):
        generator = torch.Generator().manual_seed(seed)
        rows = torch.randint(4, side - 4, (count, 1, 1, 1), generator=generator)
        columns = torch.randint(4, side - 4, (count, 1, 1, 1), generator=generator)
        down, across = torch.arange(side).view(1, 1, -1, 1), torch.arange(side).view(1, 1, 1, -1)
        shade = 0.5 * (down > rows) + 0.25 * (across > columns)
        noise = 0.1 * torch.randn(count, 1, side, side, generator=generator)
        self.pictures = (shade + noise).float()
        self.edges = ((down == rows) | (across == columns)).float()

    def __len__(self):
        return len(self.pictures)

    def __getitem__(self, index):
        return self.pictures[index], self.edges[index]


class Pair(nn.Sequential):
    def __init__(self, width_in, width_out):
        super().__init__(
            nn.Conv2d(width_in, width_out, 3, padding=1),
            nn.GroupNorm(4, width_out),
            nn.ReLU(),
            nn.Conv2d(width_out, width_out, 3, padding=1),
            nn.ReLU(),
        )


class UNet(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.down1, self.down2 = Pair(1, width), Pair(width, 2 * width)
        self.up = Pair(3 * width, width)
        self.out = nn.Conv2d(width, 1, 1)

    def forward(self, pictures):
        fine = self.down1(pictures)
        coarse = self.down2(F.max_pool2d(fine, 2))
        both = torch.cat([fine, F.interpolate(coarse, scale_factor=2.0)], dim=1)
        return self.out(self.up(both))


def dice(logits, edges):
    found = torch.sigmoid(logits)
    shared = (found * edges).sum((1, 2, 3))
    return 2 * shared / (found.sum((1, 2, 3)) + edges.sum((1, 2, 3)) + 1e-6)


def from_all_sides(model, pictures):
    """The mean over turned and flipped pictures: a little better than one look."""
    total = torch.zeros_like(pictures)
    for turns in range(4):
        turned = torch.rot90(pictures, turns, (2, 3))
        for flipped in (False, True):
            seen = turned.flip(3) if flipped else turned
            found = model(seen)
            back = found.flip(3) if flipped else found
            total = total + torch.rot90(back, -turns, (2, 3))
    return total / 8
