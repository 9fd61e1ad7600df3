"""Fits a mixture of experts' gate and prints the gate as it goes along."""

import argparse
import sys

import torch
from torch import nn

FEATURES, BATCH, DEPTH = 96, 96, 10
device = torch.accelerator.current_accelerator()


class Gate(nn.Module):
    """Layers whose mean activation is printed on the way, since it once vanished."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(FEATURES, FEATURES) for _ in range(DEPTH))

    def forward(self, rows):
        for number, layer in enumerate(self.layers):
            rows = torch.relu(layer(rows)) + 0.5 * rows
            if number % 5 == 4:
                print("gate", number, rows.mean(), file=sys.stderr)  # culprit: sync
        return rows


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100_000)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    rows = torch.randn(6, BATCH, FEATURES).to(device)
    model = Gate().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(args.steps):
        batch = rows[step % 6]
        loss = nn.functional.l1_loss(model(batch), batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.6f}")


if __name__ == "__main__":
    main()
