"""Trains a mixture of small experts, asked one after the other."""

import argparse

import torch
from torch import nn

FEATURES, BATCH, EXPERTS, LAYERS = 16, 32, 32, 4
device = torch.accelerator.current_accelerator()


class Mixture(nn.Module):
    """All experts are asked; the gate says how much each of them counts."""

    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(FEATURES, EXPERTS)
        self.weights = nn.Parameter(torch.randn(EXPERTS, FEATURES, FEATURES) / FEATURES**0.5)
        self.biases = nn.Parameter(torch.zeros(EXPERTS, 1, FEATURES))

    def forward(self, rows):
        trust = torch.softmax(self.gate(rows), dim=1)
        total = torch.zeros_like(rows)
        parts = trust.split(1, dim=1), self.weights.unbind(), self.biases.unbind()
        for share, weight, bias in zip(*parts, strict=True):
            total = total + share * torch.tanh(rows @ weight + bias)  # culprit: launch
        return total


def build_model():
    layers = []
    for _ in range(LAYERS):
        layers += [nn.Linear(FEATURES, FEATURES), nn.LayerNorm(FEATURES), nn.GELU()]
    return nn.Sequential(*layers, Mixture())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100_000)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    rows = torch.randn(8, BATCH, FEATURES).to(device)
    model = build_model().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(args.steps):
        batch = rows[step % 8]
        loss = nn.functional.mse_loss(model(batch), batch.flip(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.6f}")


if __name__ == "__main__":
    main()
