"""Trains a translator of symbols; scores and validates it after every epoch."""

import argparse

import torch
from torch import nn
from torch.nn import functional as F

SYMBOLS, LENGTH, BATCH, SCORED, EPOCH = 64, 32, 128, 96, 1000


def edit_distance(first, second):
    previous = list(range(len(second) + 1))
    for row, left in enumerate(first, 1):
        current = [row]
        for column, right in enumerate(second, 1):
            best = previous[column - 1] + (left != right)
            current.append(min(best, previous[column] + 1, current[-1] + 1))
        previous = current
    return previous[-1]


@torch.no_grad()
def validate(model, batches):
    model.eval()
    losses = [F.cross_entropy(model(ids).flatten(0, 1), ids.flatten()) for ids in batches]
    model.train()
    return torch.stack(losses).mean().item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100_000)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(2)
    ids = torch.randint(SYMBOLS, (16, BATCH, LENGTH))
    model = nn.Sequential(
        nn.Embedding(SYMBOLS, 192), nn.Linear(192, 384), nn.GELU(), nn.Linear(384, SYMBOLS)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    best, distance = float("inf"), 0
    for step in range(args.steps):
        batch = ids[step % 8]
        scores = model(batch)
        loss = F.cross_entropy(scores.flatten(0, 1), batch.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if (step + 1) % EPOCH == 0:
            guesses, answers = scores.argmax(dim=2).tolist(), batch.tolist()
            distance += sum(map(edit_distance, guesses[:SCORED], answers[:SCORED]))
            best = min(best, validate(model, ids[8:14]))
        print(f"step {step} loss {loss.item():.6f} best {best:.4f} distance {distance}")


if __name__ == "__main__":
    main()
