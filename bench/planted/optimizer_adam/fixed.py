"""Trains a wide network with AdamW, all of its arithmetic in one pass."""

import argparse

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

WIDTH, BATCH = 1280, 64


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100_000)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(2)
    batches = [(torch.randn(BATCH, WIDTH), torch.randint(10, (BATCH,))) for _ in range(8)]
    loader = DataLoader(batches, batch_size=None)
    layers = [part for _ in range(5) for part in (nn.Linear(WIDTH, WIDTH), nn.ReLU())]
    model = nn.Sequential(*layers, nn.Linear(WIDTH, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    step = 0
    while step < args.steps:
        for rows, labels in loader:
            loss = F.cross_entropy(model(rows), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(f"step {step} loss {loss.item():.6f}")
            step += 1
            if step == args.steps:
                break


if __name__ == "__main__":
    main()
