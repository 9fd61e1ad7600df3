"""Learns from few labelled and many unlabelled rows, which come from two loaders.

The labelled rows look expensive (a loop over columns), but there are few of them; the noise of
the unlabelled ones is drawn row by row.
"""

import argparse

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

FEATURES = 256


class Labelled(Dataset):
    def __init__(self):
        self.rows = torch.randn(1024, FEATURES)

    def __len__(self):
        return 10_000_000

    def __getitem__(self, index):
        row = self.rows[index % 1024].clone()
        for column in range(0, FEATURES, 64):
            row[column : column + 64] -= row[column : column + 64].mean()
        return row, index % 10


class Unlabelled(Dataset):
    def __init__(self):
        self.rows = torch.randn(4096, FEATURES)

    def __len__(self):
        return 10_000_000

    def __getitem__(self, index):
        return self.rows[index % 4096] + 0.1 * torch.randn(FEATURES)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100_000)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(2)
    labelled = DataLoader(Labelled(), batch_size=16)
    unlabelled = DataLoader(Unlabelled(), batch_size=256)
    model = nn.Sequential(
        nn.Linear(FEATURES, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    pairs = zip(labelled, unlabelled, strict=True)
    for step, ((rows, labels), others) in zip(range(args.steps), pairs, strict=False):
        loss = F.cross_entropy(model(rows), labels)
        probabilities = model(others).softmax(dim=1)
        loss = loss - 0.1 * (probabilities * probabilities.clamp(min=1e-6).log()).sum(dim=1).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step} loss {loss.item():.6f}")


if __name__ == "__main__":
    main()
