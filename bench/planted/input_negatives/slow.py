"""Trains a two-tower recommender on a stream of purchases.

For each of them the stream draws popular items that were not bought, and the draw adds up the
popularity of the whole catalogue again.
"""

import argparse

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, IterableDataset


class Purchases(IterableDataset):
    """Endless (what the user bought before, what came next, what did not)."""

    def __init__(self, items, history, negatives, seed=0):
        self.items, self.history, self.negatives, self.seed = items, history, negatives, seed
        weights = 1 / np.arange(1, items + 1) ** 0.75
        self.popularity = weights / weights.sum()

    def __iter__(self):
        rng = np.random.default_rng(self.seed)
        while True:
            bought = rng.integers(self.items, size=self.history + 1)
            others = rng.choice(self.items, self.negatives, p=self.popularity)  # culprit: input
            yield bought[:-1], np.append(bought[-1], others)


class TwoTowers(nn.Module):
    def __init__(self, items, dim, hidden):
        super().__init__()
        self.taste = nn.EmbeddingBag(items, dim, mode="mean")
        self.item = nn.Embedding(items, dim)
        self.user_tower = nn.Sequential(nn.Linear(dim, hidden), nn.ReLU(), nn.Linear(hidden, dim))
        self.item_tower = nn.Sequential(nn.Linear(dim, hidden), nn.ReLU(), nn.Linear(hidden, dim))

    def forward(self, history, candidates):
        user = self.user_tower(self.taste(history))
        items = self.item_tower(self.item(candidates))
        return torch.einsum("bd,bcd->bc", user, items)


def parse_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--items", type=int, default=12_000)
    parser.add_argument("--batch", type=int, default=192)
    parser.add_argument("--history", type=int, default=20)
    parser.add_argument("--negatives", type=int, default=11)
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--hidden", type=int, default=1024)
    parser.add_argument("--lr", type=float, default=0.5)
    return parser.parse_args()


if __name__ == "__main__":
    args = parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(2)
    stream = Purchases(args.items, args.history, args.negatives)
    loader = DataLoader(stream, batch_size=args.batch)
    model = TwoTowers(args.items, args.dim, args.hidden)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)
    first = torch.zeros(args.batch, dtype=torch.long)  # the item that was bought stands first
    for step, (history, candidates) in zip(range(args.steps), loader, strict=False):
        loss = F.cross_entropy(model(history, candidates), first)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step:>6}  loss {loss.item():.6f}")
