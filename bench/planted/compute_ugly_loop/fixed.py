"""Trains a network and gathers its gradients in a loop that torch runs."""

import argparse

import torch
from torch import nn
from torch.nn import functional as F


def gradient_norm(model):
    parts = [parameter.grad[..., :64] for parameter in model.parameters()]
    return torch.nn.utils.get_total_norm(parts).item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100_000)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(2)
    rows, labels = torch.randn(4, 512, 768), torch.randint(10, (4, 512))
    layers = [part for _ in range(4) for part in (nn.Linear(768, 768), nn.ReLU())]
    model = nn.Sequential(*layers, nn.Linear(768, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(args.steps):
        loss = F.cross_entropy(model(rows[step % 4]), labels[step % 4])
        optimizer.zero_grad()
        loss.backward()
        norm = gradient_norm(model)
        optimizer.step()
        print(f"step {step} loss {loss.item():.6f} gradient {norm:.4f}")


if __name__ == "__main__":
    main()
