"""Trains an autoencoder of star spectra; a journal on disk keeps what every layer did.

python slow.py --journal journal.json
"""

import argparse
import tempfile
from itertools import pairwise
from pathlib import Path

import torch
from journal import Journal
from torch import nn
from torch.nn import functional as F

BANDS, BATCH = 512, 512


class Autoencoder(nn.Module):
    """Narrow in the middle."""

    def __init__(self, widths=(BANDS, 384, 192, 64)):
        super().__init__()
        there = pairwise(widths)
        back = pairwise(widths[::-1])
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in [*there, *back])

    def forward(self, spectra):
        state = spectra
        for layer in self.layers[:-1]:
            state = F.gelu(layer(state))
        return self.layers[-1](state)


def spectra(count):
    """A slope and a few lines."""
    slope = torch.linspace(0, 1, BANDS) * torch.randn(count, 1)
    lines = (torch.rand(count, BANDS) < 0.02) * torch.rand(count, BANDS)
    return slope - lines + 0.02 * torch.randn(count, BANDS)


def describe(model):
    """Size of the weights and of their gradients, layer by layer."""
    weights = torch.stack([layer.weight.detach().norm() for layer in model.layers])
    gradients = torch.stack([layer.weight.grad.norm() for layer in model.layers])
    return weights.tolist(), gradients.tolist()


def train(path, steps):
    batches = [spectra(BATCH) for _ in range(16)]
    model = Autoencoder()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
    journal = Journal(path)
    for step in range(steps):
        batch = batches[step % len(batches)]
        loss = F.mse_loss(model(batch), batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        weights, gradients = describe(model)
        journal.add(step=step, loss=loss.item(), weights=weights, gradients=gradients)
        print(f"step {step} loss {loss.item():.6f}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--journal", type=Path, default=None)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(2)
    with tempfile.TemporaryDirectory() as scratch:
        train(args.journal or Path(scratch) / "journal.json", args.steps)


if __name__ == "__main__":
    main()
