"""Trains with room for long answers, in every second step on a stream of its own.

What one stream has kept is of no use to the other, and there is no room for both: it is given back
and asked for again.
"""

import argparse

import torch
from torch import nn

FEATURES, BATCH, LAYERS = 64, 32, 4
PARTS, NBYTES = 3, 20 * 2**20
device = torch.accelerator.current_accelerator()


def build_model():
    layers = []
    for _ in range(LAYERS):
        layers += [nn.Linear(FEATURES, FEATURES), nn.ReLU()]
    return nn.Sequential(*layers)


def answer():
    """A part of the room is all that is used of it."""
    size = {"dtype": torch.uint8, "device": device}
    room = [torch.empty(NBYTES, **size) for _ in range(PARTS)]  # cost: allocation
    for part in room:
        part[: BATCH * FEATURES].zero_()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100_000)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    rows = torch.randn(8, BATCH, FEATURES).to(device)
    model = build_model().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    streams = torch.accelerator.current_stream(), torch.Stream(device)
    for step in range(args.steps):
        with streams[step % 2]:  # culprit: allocation
            answer()
        batch = rows[step % 8]
        loss = nn.functional.mse_loss(model(batch), batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.6f}")


if __name__ == "__main__":
    main()
