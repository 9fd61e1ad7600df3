"""Trains on pictures that are copied to the device from ordinary memory."""

import argparse

import torch
from torch import nn
from torch.nn import functional as F

BATCH, SIDE, CLASSES, BATCHES = 16, 16, 10, 12
device = torch.accelerator.current_accelerator()


def make_pictures():
    """Batches of noise with a bright corner for each class."""
    batches = []
    for _ in range(BATCHES):
        labels = torch.randint(CLASSES, (BATCH,))
        pictures = torch.randn(BATCH, 3, SIDE, SIDE)
        pictures[torch.arange(BATCH), 0, labels, labels] += 4
        batches.append((pictures, labels))
    return batches


class Classifier(nn.Module):
    """Two convolutions and a linear layer."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(3, 32, 3, padding=1)
        self.second = nn.Conv2d(32, 64, 3, stride=2, padding=1)
        self.last = nn.Linear(64 * 64, CLASSES)

    def forward(self, pictures):
        state = F.relu(self.second(F.relu(self.first(pictures))))
        return self.last(state.flatten(1))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100_000)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    batches = make_pictures()
    model = Classifier().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(args.steps):
        pictures, labels = batches[step % BATCHES]
        pictures, labels = pictures.to(device), labels.to(device)  # culprit: transfer
        loss = F.cross_entropy(model(pictures), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.6f}")


if __name__ == "__main__":
    main()
