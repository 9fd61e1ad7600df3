"""Learns the motion of coupled pendulums as a differential equation (Runge-Kutta of order four).

    python slow.py --substeps 12

One substep needs the one before it, so they come one after the other.
"""

import argparse
from dataclasses import dataclass

import torch
from pendulums import simulate
from torch import nn
from torch.nn import functional as F


@dataclass
class Config:
    pendulums: int = 24
    width: int = 192
    substeps: int = 10
    batch_size: int = 384
    lr: float = 1e-3
    seed: int = 23


class Motion(nn.Module):
    """How the state changes in an instant."""

    def __init__(self, config):
        super().__init__()
        self.first = nn.Linear(2 * config.pendulums, config.width)
        self.second = nn.Linear(config.width, config.width)
        self.third = nn.Linear(config.width, 2 * config.pendulums)

    def forward(self, state):
        hidden = torch.tanh(self.first(state))
        hidden = hidden + torch.tanh(self.second(hidden))
        return self.third(hidden)


def runge_kutta(motion, state, duration, substeps):
    """Follow the motion through time."""
    h = duration / substeps
    for _ in range(substeps):
        k1 = motion(state)
        k2 = motion(state + h / 2 * k1)
        k3 = motion(state + h / 2 * k2)
        k4 = motion(state + h * k3)
        state = state + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
    return state


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--substeps", type=int, default=Config.substeps)
    args = parser.parse_args()
    config = Config(substeps=args.substeps)
    torch.manual_seed(config.seed)
    torch.set_num_threads(2)
    begin, end = simulate(config.pendulums, 8 * config.batch_size)
    motion = Motion(config)
    optimizer = torch.optim.Adam(motion.parameters(), lr=config.lr)
    smoothed = None
    for step in range(args.steps):
        rows = slice((step % 8) * config.batch_size, (step % 8 + 1) * config.batch_size)
        reached = runge_kutta(motion, begin[rows], 1.0, config.substeps)
        loss = F.mse_loss(reached, end[rows])
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(motion.parameters(), 1.0)
        optimizer.step()
        smoothed = loss.item() if smoothed is None else 0.95 * smoothed + 0.05 * loss.item()
        print(f"step {step} loss {loss.item():.6f} smoothed {smoothed:.4f}")


if __name__ == "__main__":
    main()
