"""Trains a deep narrow network and reads how large the activations of every layer are."""

import argparse

import torch
from torch import nn

WIDTH, BATCH, DEPTH = 64, 64, 24
device = torch.accelerator.current_accelerator()


class Watched(nn.Module):
    """A deep network that remembers the largest activation of each layer."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(DEPTH))
        self.largest = [0.0] * DEPTH

    def forward(self, state):
        for number, layer in enumerate(self.layers):
            state = state + torch.tanh(layer(state)) / DEPTH
            self.largest[number] = state.detach().abs().max().item()  # culprit: sync
        return state


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100_000)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    rows = torch.randn(8, BATCH, WIDTH).to(device)
    wanted = torch.randn(8, BATCH, WIDTH).to(device)
    model = Watched().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(args.steps):
        loss = nn.functional.mse_loss(model(rows[step % 8]), wanted[step % 8])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.6f} largest {float(max(model.largest)):.4f}")


if __name__ == "__main__":
    main()
