"""Fits a layer row by row: each row is a launch of its own."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

FEATURES, BATCH, LAYERS = 64, 64, 1
device = torch.accelerator.current_accelerator()


class Spectra(Dataset):
    """Rows that are their own target."""

    def __init__(self, rows):
        self.rows = torch.randn(rows, FEATURES)

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return self.rows[index]


class Cell(nn.Module):
    """One layer, and a loop over the rows of the batch."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(FEATURES, FEATURES)

    def forward(self, rows):
        parts = [torch.tanh(self.layer(row)) for row in rows]  # culprit: launch
        return torch.stack(parts)


def build_model():
    return nn.Sequential(*[Cell() for _ in range(LAYERS)])


def train(model, loader, steps):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(steps):
        if step % len(loader) == 0:
            batches = iter(loader)
        rows = next(batches).to(device)
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
    loader = DataLoader(Spectra(1024), batch_size=BATCH, drop_last=True)
    train(build_model().to(device), loader, args.steps)


if __name__ == "__main__":
    main()
