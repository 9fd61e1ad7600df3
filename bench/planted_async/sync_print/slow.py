"""Fits an autoencoder and writes down its loss in every step: host and device take turns."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

FEATURES, BATCH, LAYERS = 256, 64, 2
device = torch.accelerator.current_accelerator()


class Spectra(Dataset):
    """Rows that are their own target."""

    def __init__(self, rows):
        self.rows = torch.randn(rows, FEATURES)

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return self.rows[index]


def build_model():
    layers = []
    for _ in range(LAYERS):
        layers += [nn.Linear(FEATURES, FEATURES), nn.ReLU()]
    return nn.Sequential(*layers)


def describe(rows):
    """A table of the batch, number by number."""
    numbers = rows.repeat(6, 1).flatten().tolist()
    return sum(abs(number) for number in numbers) / len(numbers)


def train(model, loader, steps):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    text, scale = "", 0.0
    for step in range(steps):
        if step % len(loader) == 0:
            batches = iter(loader)
        batch = next(batches)
        scale = 0.9 * scale + 0.1 * describe(batch)
        rows = batch.to(device, non_blocking=True)
        loss = nn.functional.mse_loss(model(rows), rows)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        text = f"step {step} scale {scale:.3f} loss {loss}"  # culprit: sync
    print(f"loss {loss.item():.6f} {len(text) > 0}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100_000)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    loader = DataLoader(Spectra(1024), batch_size=BATCH, drop_last=True, pin_memory=True)
    train(build_model().to(device), loader, args.steps)


if __name__ == "__main__":
    main()
