"""Learns which two recordings come from the same bird, from pairs of spectrograms.

python slow.py --pairs 24
"""

import argparse
from dataclasses import dataclass

import torch
from recordings import PairSampler
from torch import nn
from torch.nn import functional as F


@dataclass
class Config:
    pairs: int = 24
    bands: int = 32
    frames: int = 64
    width: int = 32
    margin: float = 1.0
    lr: float = 1e-3
    log_every: int = 50


class Listener(nn.Module):
    """A spectrogram becomes a point; the same bird should land nearby."""

    def __init__(self, config):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, config.width, 5, stride=2, padding=2),
            nn.ReLU(),
            nn.Conv2d(config.width, 2 * config.width, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(2 * config.width, 2 * config.width, 3, padding=1),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(2),
            nn.Flatten(),
            nn.Linear(8 * config.width, 64),
        )

    def forward(self, spectrogram):
        return F.normalize(self.layers(spectrogram.unsqueeze(1)), dim=1)


def contrastive(left, right, same, margin):
    distance = (left - right).square().sum(1).add(1e-8).sqrt()
    return torch.where(same, distance, F.relu(margin - distance)).square().mean()


def to_tensor(spectrograms):
    return torch.tensor([s.tolist() for s in spectrograms])  # culprit: transfer


def train(config, steps):
    sampler = PairSampler(config)
    model = Listener(config)
    optimizer = torch.optim.Adam(model.parameters(), lr=config.lr, fused=True)
    near = 0.0
    for step in range(steps):
        left, right, same = sampler.draw()
        left, right = to_tensor(left), to_tensor(right)
        first, second = model(left), model(right)
        loss = contrastive(first, second, torch.tensor(same), config.margin)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % config.log_every == 0:
            near = (first - second).norm(dim=1).mean().item()
        print(f"step {step} loss {loss.item():.6f} distance {near:.3f}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--pairs", type=int, default=Config.pairs)
    parser.add_argument("--margin", type=float, default=Config.margin)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(2)
    train(Config(pairs=args.pairs, margin=args.margin), args.steps)


if __name__ == "__main__":
    main()
