"""Trains a tagger and shows the accuracy over everything seen so far.

Every prediction is kept, and all of them are looked at again after each step.
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
    predictions, answers = [], []
    for step in range(args.steps):
        ids = words[step % 4]
        scores = model(ids)
        loss = F.cross_entropy(scores, ids % TAGS)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        predictions.append(scores.argmax(dim=1))
        answers.append(ids % TAGS)
        accuracy = (torch.cat(predictions) == torch.cat(answers)).float().mean()  # culprit: growth
        print(f"step {step} loss {loss.item():.6f} accuracy {accuracy.item():.4f}")


if __name__ == "__main__":
    main()
