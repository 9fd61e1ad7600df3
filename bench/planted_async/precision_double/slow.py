"""Fits an autoencoder to rows that a list of numbers has made float64."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

FEATURES, BATCH, LAYERS = 256, 64, 4
device = torch.accelerator.current_accelerator()


class Spectra(Dataset):
    """Rows that are their own target."""

    def __init__(self, rows):
        self.rows = torch.randn(rows, FEATURES)
        self.scale = torch.tensor(1.5, dtype=torch.float64)  # culprit: precision

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return self.rows[index] * self.scale.expand(FEATURES)


def build_model():
    layers = []
    for _ in range(LAYERS):
        layers += [nn.Linear(FEATURES, FEATURES), nn.ReLU()]
    return nn.Sequential(*layers).double()  # cost: precision


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
    loader = DataLoader(Spectra(1024), batch_size=BATCH, drop_last=True, pin_memory=True)
    train(build_model().to(device), loader, args.steps)


if __name__ == "__main__":
    main()
