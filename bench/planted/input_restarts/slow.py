"""Learns embeddings of short melodies by contrast: two transpositions of one melody are alike.

A step asks the loader for one batch.
"""

import argparse
from dataclasses import dataclass

import torch
from melodies import Melodies
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, RandomSampler


@dataclass
class Options:
    batch_size: int = 96
    notes: int = 64
    length: int = 48
    width: int = 128
    temperature: float = 0.2
    lr: float = 1e-3
    melodies: int = 20_000


class Encoder(nn.Module):
    def __init__(self, options):
        super().__init__()
        width = options.width
        self.notes = nn.Embedding(options.notes, width)
        self.layers = nn.ModuleList(
            nn.Conv1d(width, width, 5, padding=2, groups=4) for _ in range(4)
        )
        self.out = nn.Linear(width, 64)

    def forward(self, melody):
        state = self.notes(melody).transpose(1, 2)
        for layer in self.layers:
            state = state + F.gelu(layer(state))
        return F.normalize(self.out(state.mean(2)), dim=1)


def contrast(left, right, temperature):
    scores = left @ right.T / temperature
    same = torch.arange(len(scores))
    return (F.cross_entropy(scores, same) + F.cross_entropy(scores.T, same)) / 2


def train(options, steps):
    sampler = RandomSampler(range(options.melodies), replacement=True, num_samples=10**9)
    loader = DataLoader(
        Melodies(options.melodies, options.length, options.notes),
        batch_size=options.batch_size,
        sampler=sampler,
        num_workers=1,
    )
    model = Encoder(options)
    optimizer = torch.optim.Adam(model.parameters(), lr=options.lr)
    for step in range(steps):
        left, right = next(iter(loader))  # culprit: input
        loss = contrast(model(left), model(right), options.temperature)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step} loss {loss.item():.6f}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--temperature", type=float, default=Options.temperature)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    train(Options(temperature=args.temperature), args.steps)


if __name__ == "__main__":
    main()
