"""Trains a tagger and shows the accuracy over everything seen so far.

Only the number of right ones is kept.
"""

import argparse

import torch
from torch import nn
from torch.nn import functional as F

WORDS, TAGS, TOKENS = 2000, 16, 16_384


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100_000)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(2)
    words = torch.randint(WORDS, (4, TOKENS))
    model = nn.Sequential(
        nn.Embedding(WORDS, 64), nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, TAGS)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    right = 0
    for step in range(args.steps):
        ids = words[step % 4]
        scores = model(ids)
        loss = F.cross_entropy(scores, ids % TAGS)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        right += (scores.argmax(dim=1) == ids % TAGS).sum().item()
        accuracy = right / ((step + 1) * TOKENS)
        print(f"step {step} loss {loss.item():.6f} accuracy {accuracy:.4f}")


if __name__ == "__main__":
    main()
