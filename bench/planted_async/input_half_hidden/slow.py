"""Learns to complete sentences that are cut into pieces by hand between two steps.

The device is busy for a part of that time, but not for all of it.
"""

import argparse
import random

import torch
from torch import nn

LETTERS, LENGTH, BATCH, WIDTH = 64, 24, 24, 32
SENTENCES = 512
device = torch.accelerator.current_accelerator()


class Sentences:
    """Sentences as strings, and the loop that turns them into numbers."""

    def __init__(self, seed):
        rng = random.Random(seed)
        self.texts = [
            "".join(chr(48 + rng.randrange(LETTERS)) for _ in range(4500)) for _ in range(SENTENCES)
        ]

    def piece(self, number):
        """Every letter is looked at, though few are kept."""
        total, kept = 0, []
        for letter in self.texts[number]:
            total = (total * 31 + ord(letter)) % 65_521  # cost: input
            kept.append(total % LETTERS)
        return kept[-LENGTH - 1 :]

    def batch(self, step):
        numbers = [(step * BATCH + each) % SENTENCES for each in range(BATCH)]
        return torch.tensor([self.piece(number) for number in numbers])  # culprit: input


class Completer(nn.Module):
    """Each letter from the three before it."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(LETTERS, WIDTH)
        self.mix = nn.Linear(3 * WIDTH, 3 * WIDTH)
        self.out = nn.Linear(3 * WIDTH, LETTERS)

    def forward(self, letters):
        known = self.embed(letters)
        recent = torch.cat([known[:, 2:], known[:, 1:-1], known[:, :-2]], dim=2)
        return self.out(torch.tanh(self.mix(recent)))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100_000)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    sentences = Sentences(seed=3)
    model = Completer().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(args.steps):
        letters = sentences.batch(step).to(device)
        logits = model(letters[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), letters[:, 3:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.6f}")


if __name__ == "__main__":
    main()
