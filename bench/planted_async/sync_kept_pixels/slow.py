"""Fills holes in pictures of the ground; only pixels that were seen count, layer by layer."""

import argparse

import torch
from torch import nn

PIXELS, BATCH, WIDTH, HEADS = 1024, 4, 16, 6
device = torch.accelerator.current_accelerator()


class Filler(nn.Module):
    """Several guesses of each pixel, from coarse to fine."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(1, WIDTH)
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(HEADS))
        self.heads = nn.ModuleList(nn.Linear(WIDTH, 1) for _ in range(HEADS))

    def forward(self, pixels):
        state = self.first(pixels.unsqueeze(2))
        guesses = []
        for layer, head in zip(self.layers, self.heads, strict=True):
            state = torch.tanh(layer(state))
            guesses.append(head(state).squeeze(2))
        return guesses


def seen_loss(guess, wanted, seen):
    """The mean squared error of the pixels that were seen."""
    return (guess[seen] - wanted[seen]).square().mean()  # culprit: sync


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100_000)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    pictures = torch.randn(8, BATCH, PIXELS).to(device)
    masks = (torch.rand(8, BATCH, PIXELS) < 0.7).to(device)
    model = Filler().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(args.steps):
        wanted, seen = pictures[step % 8], masks[step % 8]
        loss = sum(seen_loss(guess, wanted, seen) for guess in model(wanted * seen))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.6f}")


if __name__ == "__main__":
    main()
