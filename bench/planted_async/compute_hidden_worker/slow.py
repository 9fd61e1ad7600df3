"""Trains a wide network on signals that a loader process filters while the device computes.

The loader works hard, but it is always ahead.
"""

import argparse
import math

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

LENGTH, BATCH, WIDTH, SIGNALS = 256, 32, 384, 1024
device = torch.accelerator.current_accelerator()


class Signals(Dataset):
    """Waves, filtered sample by sample."""

    def __init__(self):
        self.pitches = torch.rand(SIGNALS, generator=torch.Generator().manual_seed(2)).tolist()

    def __len__(self):
        return SIGNALS

    def __getitem__(self, index):
        level, filtered = 0.0, []
        for time in range(LENGTH):
            level = 0.8 * level + 0.2 * math.sin(0.3 * self.pitches[index] * time)
            filtered.append(level)
        return torch.tensor(filtered)


def build_model(depth=5):
    layers = [nn.Linear(LENGTH, WIDTH), nn.SiLU()]
    for _ in range(depth):
        layers += [nn.Linear(WIDTH, WIDTH), nn.SiLU()]
    return nn.Sequential(*layers, nn.Linear(WIDTH, LENGTH))


def endless(loader):
    while True:
        yield from loader


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100_000)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    loader = DataLoader(
        Signals(), batch_size=BATCH, drop_last=True, num_workers=1, persistent_workers=True
    )
    model = build_model().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for _, signals in zip(range(args.steps), endless(loader), strict=False):
        batch = signals.to(device)
        loss = nn.functional.mse_loss(model(batch), batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.6f}")


if __name__ == "__main__":
    main()
