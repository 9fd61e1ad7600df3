"""Trains a generator of textures against a discriminator of patches.

Whether the discriminator is too far ahead is decided by the patches that it gets right.
"""

import argparse
from dataclasses import dataclass

import torch
from networks import Discriminator, Generator
from torch.nn import functional as F


@dataclass
class Config:
    batch_size: int = 24
    noise: int = 48
    width: int = 24
    lr_generator: float = 2e-4
    lr_discriminator: float = 2e-4
    ahead: float = 0.9


def make_textures(count, generator):
    """Stripes in random directions."""
    angles = torch.rand(count, 1, 1, generator=generator) * 3.1416
    grid = torch.linspace(-8, 8, 32)
    waves = torch.sin(angles.cos() * grid + angles.sin() * grid.unsqueeze(1))
    return waves.unsqueeze(1) + 0.05 * torch.randn(count, 1, 32, 32, generator=generator)


def count_right(real, fake):
    """The share of patches whose side the discriminator knows."""
    right = 0
    scores = torch.cat([real.flatten(), fake.flatten()])
    labels = torch.cat([torch.ones(real.numel()), torch.zeros(fake.numel())])
    for i in range(len(scores)):
        guess = 1.0 if scores[i].item() > 0 else 0.0  # culprit: sync
        if guess == labels[i].item():
            right += 1
    return right / len(scores)


def train(config, steps):
    data = torch.Generator().manual_seed(1)
    generator = Generator(config.noise, config.width)
    discriminator = Discriminator(config.width)
    opt_g = torch.optim.Adam(generator.parameters(), config.lr_generator, betas=(0.5, 0.999))
    opt_d = torch.optim.Adam(
        discriminator.parameters(), config.lr_discriminator, betas=(0.5, 0.999)
    )
    skipped = 0
    for step in range(steps):
        textures = make_textures(config.batch_size, data)
        made = generator(torch.randn(config.batch_size, config.noise))
        real, fake = discriminator(textures), discriminator(made.detach())
        loss_d = F.softplus(-real).mean() + F.softplus(fake).mean()
        if count_right(real, fake) < config.ahead:
            opt_d.zero_grad()
            loss_d.backward()
            opt_d.step()
        else:
            skipped += 1
        loss_g = F.softplus(-discriminator(made)).mean()
        opt_g.zero_grad()
        loss_g.backward()
        opt_g.step()
        print(f"step {step} generator {loss_g.item():.6f} skipped {skipped}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--batch-size", type=int, default=Config.batch_size)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(2)
    train(Config(batch_size=args.batch_size), args.steps)


if __name__ == "__main__":
    main()
