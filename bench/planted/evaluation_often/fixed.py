"""Trains a classifier and validates it on the whole validation set, after every epoch."""

import argparse

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

EPOCH = 1000


def make_batches(count, size):
    return [(torch.randn(size, 512), torch.randint(10, (size,))) for _ in range(count)]


@torch.no_grad()
def evaluate(model, batches):
    model.eval()
    right = sum((model(rows).argmax(dim=1) == labels).sum().item() for rows, labels in batches)
    model.train()
    return right / sum(len(labels) for _, labels in batches)


def train(model, loader, validation, steps):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    batches = iter(loader)
    best = 0.0
    for step in range(steps):
        if step and step % len(loader) == 0:
            batches = iter(loader)
        rows, labels = next(batches)
        loss = F.cross_entropy(model(rows), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if (step + 1) % EPOCH == 0:
            best = max(best, evaluate(model, validation))
        print(f"step {step} loss {loss.item():.6f} best {best:.4f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100_000)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(2)
    network = nn.Sequential(nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 10))
    training = DataLoader(make_batches(8, 384), batch_size=None)
    train(network, training, make_batches(24, 384), args.steps)
