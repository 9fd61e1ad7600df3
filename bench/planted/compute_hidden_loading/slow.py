"""Trains on pictures that come over a slow network, which two workers hide: nothing is wrong.

Each picture takes a millisecond to arrive; the workers wait for it while the model computes.
"""

import argparse
import time

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset


class Remote(Dataset):
    def __init__(self):
        self.pictures = torch.randn(256, 3, 32, 32)

    def __len__(self):
        return 10_000_000

    def __getitem__(self, index):
        time.sleep(0.001)
        return self.pictures[index % 256], index % 10


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100_000)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(2)
    loader = DataLoader(Remote(), batch_size=64, num_workers=2)
    model = nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(32, 32, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(4),
        nn.Flatten(),
        nn.Linear(512, 10),
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step, (pictures, labels) in zip(range(args.steps), loader, strict=False):
        loss = F.cross_entropy(model(pictures), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step} loss {loss.item():.6f}")


if __name__ == "__main__":
    main()
