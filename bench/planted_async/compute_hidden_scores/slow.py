"""Trains wide layers; what an earlier epoch predicted is scored on the host meanwhile.

The scoring takes the host long, but the device has enough to do until it is over.
"""

import argparse

import torch
from torch import nn

FEATURES, WIDTH, BATCH, DEPTH = 128, 320, 64, 6
EVERY, PAIRS = 5, 12_000
device = torch.accelerator.current_accelerator()


def build_model():
    layers = [nn.Linear(FEATURES, WIDTH), nn.ReLU()]
    for _ in range(DEPTH):
        layers += [nn.Linear(WIDTH, WIDTH), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(WIDTH, 1))


def concordance(predicted, wanted):
    """How often is the larger one predicted to be larger? Pair by pair."""
    right = 0
    for number in range(PAIRS):
        a, b = number % len(predicted), (number * 7 + 3) % len(predicted)
        right += (predicted[a] > predicted[b]) == (wanted[a] > wanted[b])
    return right / PAIRS


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100_000)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    rows = torch.randn(8, BATCH, FEATURES)
    wanted = rows.sum(2, keepdim=True) / 8
    earlier = (wanted + torch.randn_like(wanted)).flatten().tolist()
    truth = wanted.flatten().tolist()
    rows, wanted = rows.to(device), wanted.to(device)
    model = build_model().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    score = 0.0
    for step in range(args.steps):
        loss = nn.functional.mse_loss(model(rows[step % 8]), wanted[step % 8])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % EVERY == 0:
            score = concordance(earlier, truth)
    print(f"loss {loss.item():.6f} concordance {score:.3f}")


if __name__ == "__main__":
    main()
