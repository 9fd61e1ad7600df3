"""Tags the words of sentences of different lengths.

The sentences are padded once, before the training.
"""

import argparse
import random

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

WORDS, TAGS, LONGEST = 5000, 32, 128


def make_sentences(count):
    source = random.Random(0)
    return [
        [source.randrange(1, WORDS) for _ in range(source.randrange(64, LONGEST))]
        for _ in range(count)
    ]


def pad(sentences):
    return torch.tensor([sentence + [0] * (LONGEST - len(sentence)) for sentence in sentences])


def train(model, loader, steps):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(steps):
        if step % len(loader) == 0:
            batches = iter(loader)
        ids = next(batches)
        scores = model(ids)
        loss = F.cross_entropy(scores.flatten(0, 1), ids.flatten() % TAGS)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step}: loss {loss.item():.6f}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100_000)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(2)
    sentences = pad(make_sentences(2048))
    loader = DataLoader(sentences, batch_size=128, drop_last=True)
    model = nn.Sequential(
        nn.Embedding(WORDS, 64), nn.Linear(64, 128), nn.GELU(), nn.Linear(128, TAGS)
    )
    train(model, loader, args.steps)


if __name__ == "__main__":
    main()
