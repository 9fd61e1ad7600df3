"""Fits layers that choose their rows by a mask, which the host must count."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

FEATURES, BATCH, LAYERS = 128, 64, 12
device = torch.accelerator.current_accelerator()


class Spectra(Dataset):
    """Rows that are their own target."""

    def __init__(self, rows):
        self.rows = torch.randn(rows, FEATURES)

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return self.rows[index]


class Gate(nn.Module):
    """A layer for the rows that are large enough."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(FEATURES, FEATURES)

    def forward(self, rows):
        chosen = rows.mean(dim=1) > 0
        made = torch.zeros_like(rows)
        made[chosen] = torch.tanh(self.layer(rows[chosen]))  # culprit: sync
        return rows + made


def build_model():
    return nn.Sequential(*[Gate() for _ in range(LAYERS)])


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
