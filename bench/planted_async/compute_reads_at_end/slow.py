"""Trains a wide network and keeps a list of the losses, read after every step.

The host waits for each of them, but has little to do until the next step.
"""

import argparse

import torch
from torch import nn

WIDTH, BATCH = 512, 96
device = torch.accelerator.current_accelerator()


class Wide(nn.Module):
    """Three wide layers."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.second = nn.Linear(WIDTH, WIDTH)
        self.third = nn.Linear(WIDTH, WIDTH)

    def forward(self, rows):
        return self.third(torch.relu(self.second(torch.relu(self.first(rows)))))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100_000)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    rows = torch.randn(8, BATCH, WIDTH).to(device)
    model = Wide().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    losses = []
    for step in range(args.steps):
        batch = rows[step % 8]
        loss = nn.functional.mse_loss(model(batch), batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    print(f"loss {losses[-1]:.6f}")


if __name__ == "__main__":
    main()
