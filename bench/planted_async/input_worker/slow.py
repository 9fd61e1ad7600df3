"""Fits rows that one worker smooths, slower than the device learns them."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

FEATURES, BATCH, LAYERS = 256, 64, 2
NUMBERS = 16384
device = torch.accelerator.current_accelerator()


def smooth(row):
    """A running mean, number by number."""
    total = 0.0
    for number in row.repeat(NUMBERS // FEATURES).tolist():
        total = 0.9 * total + 0.1 * number  # cost: input
    return row + 0.001 * total


class Spectra(Dataset):
    """Rows that are their own target."""

    def __init__(self, rows):
        self.rows = torch.randn(rows, FEATURES)

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return smooth(self.rows[index])  # culprit: input


def build_model():
    layers = []
    for _ in range(LAYERS):
        layers += [nn.Linear(FEATURES, FEATURES), nn.ReLU()]
    return nn.Sequential(*layers)


def train(model, loader, steps):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(steps):
        if step % len(loader) == 0:
            batches = iter(loader)
        rows = next(batches).to(device, non_blocking=True)
        loss = nn.functional.mse_loss(model(rows), rows)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.6f}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100_000)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    loader = DataLoader(
        Spectra(512), batch_size=BATCH, drop_last=True, num_workers=1, persistent_workers=True
    )
    train(build_model().to(device), loader, args.steps)


if __name__ == "__main__":
    main()
