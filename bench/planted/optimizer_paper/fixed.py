"""Trains a generator against a critic, each with its own optimiser.

Adam is the fused one.
"""

import argparse

import torch
from torch import nn
from torch.nn import functional as F

NOISE, PIXELS, BATCH = 64, 784, 64


def make_generator():
    return nn.Sequential(
        nn.Linear(NOISE, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, PIXELS)
    )


def make_critic():
    return nn.Sequential(
        nn.Linear(PIXELS, 1024),
        nn.LeakyReLU(0.2),
        nn.Linear(1024, 1024),
        nn.LeakyReLU(0.2),
        nn.Linear(1024, 1),
        nn.Flatten(0),
    )


def make_optimizer(model):
    return torch.optim.Adam(model.parameters(), lr=2e-5, betas=(0.5, 0.999), fused=True)


def descend(loss, optimizer):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100_000)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(2)
    images = torch.rand(8, BATCH, PIXELS)
    generator, critic = make_generator(), make_critic()
    generator_optimizer = make_optimizer(generator)
    critic_optimizer = make_optimizer(critic)
    for step in range(args.steps):
        fake = generator(torch.randn(BATCH, NOISE)).sigmoid()
        real_score, fake_score = critic(images[step % len(images)]), critic(fake.detach())
        critic_loss = F.softplus(-real_score).mean() + F.softplus(fake_score).mean()
        descend(critic_loss, critic_optimizer)
        generator_loss = F.softplus(-critic(fake)).mean()
        descend(generator_loss, generator_optimizer)
        print(f"step {step} critic {critic_loss.item():.6f} generator {generator_loss.item():.6f}")


if __name__ == "__main__":
    main()
