"""Fits an autoencoder and evaluates it every fourth step."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

FEATURES, BATCH, LAYERS = 256, 64, 4
EVERY, HELD = 4, 8
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


@torch.no_grad()
def evaluate(model, rows):
    """The mean error on rows that are not learned."""
    model.eval()
    losses = [nn.functional.mse_loss(model(part), part) for part in rows.split(BATCH)]
    model.train()
    return torch.stack(losses).mean()


def train(model, loader, steps):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    held = torch.randn(HELD * BATCH, FEATURES).to(device)
    best = torch.tensor(float("inf"), device=device)
    for step in range(steps):
        if step % len(loader) == 0:
            batches = iter(loader)
        rows = next(batches).to(device, non_blocking=True)
        loss = nn.functional.mse_loss(model(rows), rows)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % EVERY == 0:
            best = torch.minimum(best, evaluate(model, held))  # culprit: evaluation
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
