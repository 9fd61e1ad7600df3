"""Visits to a web shop as lists of article numbers, and their batches."""

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

PAD = 0


class Visits(Dataset):
    def __init__(self, visits, articles, longest, seed):
        rng = np.random.default_rng(seed)
        lengths = rng.integers(longest // 2, longest + 2, size=visits)
        topic = rng.integers(1, articles - 40, size=visits)
        self.visits = [
            (first + rng.integers(0, 40, size=length)).tolist() for first, length in zip(topic, lengths)
        ]

    def __len__(self):
        return len(self.visits)

    def __getitem__(self, index):
        return self.visits[index]


class PadLeft:
    """Visits of different lengths into one matrix; the last article is the one to be guessed."""

    def __init__(self, longest):
        self.longest = longest

    def __call__(self, visits):
        clicked = torch.full((len(visits), self.longest + 1), PAD)
        for row, visit in enumerate(visits):
            clicked[row, -len(visit) :] = torch.tensor(visit)
        return clicked[:, :-1], clicked[:, 1:]


def loader(args):
    return DataLoader(
        Visits(args.visits, args.articles, args.longest, args.seed),
        batch_size=args.batch,
        shuffle=True,
        drop_last=True,
        num_workers=0,
        collate_fn=PadLeft(args.longest),
        generator=torch.Generator().manual_seed(args.seed),
    )
