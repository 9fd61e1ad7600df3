"""Classifies texts by hashed words that a plain generator counts, batch after batch."""

import argparse
import random
import zlib

import torch
from torch import nn
from torch.nn import functional as F

FEATURES, BATCH = 512, 192


def make_texts(count):
    source = random.Random(0)
    words = ["".join(source.choices("abcdefghij", k=6)) for _ in range(3000)]
    return [" ".join(source.choices(words, k=300)) for _ in range(count)]


def count_words(text):
    counts = [0.0] * FEATURES
    for word in text.split():
        counts[zlib.crc32(word.encode()) % FEATURES] += 1.0  # cost: input
    return counts


def read_batches(texts):
    start = 0
    while True:
        chosen = [texts[(start + place) % len(texts)] for place in range(BATCH)]
        labels = torch.tensor([len(text) % 10 for text in chosen])
        counts = [count_words(text) for text in chosen]
        yield torch.tensor(counts), labels  # culprit: input
        start += BATCH


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100_000)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(2)
    batches = read_batches(make_texts(BATCH * 4))
    model = nn.Sequential(
        nn.Linear(FEATURES, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001, momentum=0.9)
    for step in range(args.steps):
        counts, labels = next(batches)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(counts), labels)
        loss.backward()
        optimizer.step()
        print(step, f"{loss.item():.6f}")


if __name__ == "__main__":
    main()
