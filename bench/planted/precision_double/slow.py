"""Fits a network to rows that NumPy made, in the precision that NumPy prefers."""

import argparse

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F


def make_rows():
    source = np.random.default_rng(0)
    inputs = source.normal(size=(4, 256, 512))
    return torch.from_numpy(inputs), torch.from_numpy(inputs[..., :8].copy())


def train(steps):
    inputs, targets = make_rows()
    model = nn.Sequential(
        nn.Linear(512, 1024), nn.Tanh(), nn.Linear(1024, 768), nn.Tanh(), nn.Linear(768, 8)
    )
    model = model.double()  # culprit: precision
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(steps):
        predicted = model(inputs[step % 4])  # cost: precision
        loss = F.mse_loss(predicted, targets[step % 4])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step} loss {loss.item():.6f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100_000)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(2)
    train(args.steps)
