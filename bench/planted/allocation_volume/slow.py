"""Matches stereo pairs: how far is each pixel, by the shift at which both pictures agree?

python slow.py --shifts 40
"""

import argparse
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F


@dataclass
class Config:
    pairs: int = 4
    height: int = 96
    width: int = 160
    features: int = 8
    shifts: int = 40


class Features(nn.Module):
    """What a pixel looks like, in a few numbers."""

    def __init__(self, config):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, 16, 5, padding=2),
            nn.ReLU(),
            nn.Conv2d(16, config.features, 3, padding=1),
        )

    def forward(self, pictures):
        return F.normalize(self.layers(pictures), dim=1)


class Matcher:
    def __init__(self, config):
        self.config = config
        self.features = Features(config).eval()

    @torch.inference_mode()
    def match(self, left, right):
        """The shift of each pixel, and how sure it is."""
        first, second = self.features(left), self.features(right)
        size, channels, height, width = first.shape
        shape = self.config.shifts, size, channels, height, width
        volume = torch.zeros(shape)  # culprit: allocation
        for shift in range(self.config.shifts):
            a, b = first[..., shift:], second[..., : width - shift]
            torch.mul(a, b, out=volume[shift, ..., shift:])
        scores = volume.sum(2)
        best = scores.max(0)
        return best.indices, best.values


def make_pair(config, generator):
    """A random picture, and the same one shifted by another amount in each band."""
    right = torch.randn(config.pairs, 1, config.height, config.width, generator=generator)
    left = right.clone()
    for band, shift in enumerate(range(2, config.shifts, 6)):
        rows = slice(band * 12, band * 12 + 12)
        left[..., rows, shift:] = right[..., rows, : config.width - shift]
    return left, right


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--shifts", type=int, default=Config.shifts)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(2)
    config = Config(shifts=args.shifts)
    matcher = Matcher(config)
    generator = torch.Generator().manual_seed(1)
    pairs = [make_pair(config, generator) for _ in range(6)]
    for step in range(args.steps):
        left, right = pairs[step % len(pairs)]
        shifts, sure = matcher.match(left, right)
        print(
            f"step {step} score {sure.mean().item():.6f} shift {shifts.float().mean().item():.3f}"
        )


if __name__ == "__main__":
    main()
