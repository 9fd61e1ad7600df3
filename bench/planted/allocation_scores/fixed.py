"""Trains an encoder whose rows are compared with a large bank of earlier ones, for statistics.

The table of scores is made once and written again at every step.
"""

import argparse

import torch
from torch import nn
from torch.nn import functional as F

ROWS, BANK, WIDTH = 320, 36_864, 64


@torch.no_grad()
def similarity(rows, bank, scores):
    torch.mm(rows, bank, out=scores)
    scores.div_(0.2)
    scores.clamp_(-20.0, 20.0)
    return scores.amax(dim=1).mean()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100_000)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(2)
    bank = F.normalize(torch.randn(WIDTH, BANK), dim=0)
    scores = torch.empty(ROWS, BANK)
    inputs, targets = torch.randn(4, ROWS, 256), torch.randn(4, ROWS, WIDTH)
    model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, WIDTH))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(args.steps):
        rows = model(inputs[step % 4])
        loss = F.mse_loss(rows, targets[step % 4])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(
            f"step {step} loss {loss.item():.6f} near {similarity(rows, bank, scores).item():.6f}"
        )


if __name__ == "__main__":
    main()
