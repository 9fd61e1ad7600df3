"""Trains a toy diffusion model on pictures of blobs.

python slow.py --timesteps 500 --batch-size 256
"""

import argparse
import logging
import math
from dataclasses import dataclass

import torch
from blobs import BlobPictures
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

log = logging.getLogger("diffusion")


@dataclass
class Config:
    timesteps: int = 400
    side: int = 10
    width: int = 16
    batch_size: int = 320
    lr: float = 1e-3
    ema: float = 0.995
    workers: int = 1
    draw: bool = False


class Schedule:
    """How much of the picture and of the noise there is at each time (cosine)."""

    def __init__(self, timesteps):
        self.timesteps = timesteps

    def at(self, time):
        angle = ((time + 1) / self.timesteps + 0.008) / 1.008 * math.pi / 2
        kept = torch.cos(angle).square().clamp(min=1e-4)
        return kept.sqrt(), (1 - kept).sqrt()

    def mix(self, pictures, noise, times):
        mixed = []
        for i in range(len(pictures)):
            a, b = self.at(times[i])  # culprit: launch
            mixed.append(a * pictures[i] + b * noise[i])  # cost: launch
        return torch.stack(mixed)


class Denoiser(nn.Module):
    """Convolutions that are told the time."""

    def __init__(self, config):
        super().__init__()
        width = config.width
        self.time = nn.Sequential(nn.Embedding(config.timesteps, 64), nn.Linear(64, width))
        self.first = nn.Conv2d(1, width, 3, padding=1)
        self.middle = nn.Conv2d(width, width, 3, padding=1)
        self.last = nn.Conv2d(width, 1, 3, padding=1)
        self.norm = nn.GroupNorm(4, width)

    def forward(self, pictures, times):
        state = F.silu(self.first(pictures) + self.time(times)[:, :, None, None])
        state = state + F.silu(self.norm(self.middle(state)))
        return self.last(state)


class Average:
    """A copy of the weights that follows them slowly."""

    def __init__(self, model, decay):
        self.decay = decay
        self.weights = [p.detach().clone() for p in model.parameters()]

    @torch.no_grad()
    def follow(self, model):
        torch._foreach_lerp_(self.weights, list(model.parameters()), 1 - self.decay)


@torch.no_grad()
def draw(model, schedule, count, side):
    """Pictures out of noise, a little less of it at each time."""
    pictures = torch.randn(count, 1, side, side)
    for time in reversed(range(schedule.timesteps)):
        noise = model(pictures, torch.full((count,), time))
        a, b = schedule.at(torch.tensor(time))
        clean = ((pictures - b * noise) / a).clamp(-1, 1)
        a, b = schedule.at(torch.tensor(max(time - 1, 0)))
        pictures = a * clean + b * noise
    return pictures


def train(config, steps):
    schedule = Schedule(config.timesteps)
    model = Denoiser(config)
    average = Average(model, config.ema)
    optimizer = torch.optim.AdamW(model.parameters(), lr=config.lr, fused=True)
    loader = DataLoader(
        BlobPictures(9600, config.side),
        batch_size=config.batch_size,
        num_workers=config.workers,
        persistent_workers=True,
        drop_last=True,
    )
    step = 0
    while True:
        for pictures in loader:
            times = torch.randint(config.timesteps, (len(pictures),))
            noise = torch.randn_like(pictures)
            noised = schedule.mix(pictures, noise, times)
            loss = F.mse_loss(model(noised, times), noise)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            average.follow(model)
            print(f"step {step} loss {loss.item():.6f}")
            step += 1
            if step == steps:
                if config.draw:
                    log.info("brightest pixel %.3f", draw(model, schedule, 4, config.side).max())
                return


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--timesteps", type=int, default=Config.timesteps)
    parser.add_argument("--batch-size", type=int, default=Config.batch_size)
    parser.add_argument("--draw", action="store_true", help="draw pictures at the end")
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO)
    config = Config(timesteps=args.timesteps, batch_size=args.batch_size, draw=args.draw)
    log.info("%s", config)
    torch.manual_seed(0)
    torch.set_num_threads(1)
    train(config, args.steps)


if __name__ == "__main__":
    main()
