"""Token numbers in compressed shards, and the masking of a batch."""

import numpy as np
import torch
from torch.utils.data import Dataset

PAD, MASK, FIRST = 0, 1, 2
ROWS_PER_SHARD, SHARDS = 1280, 8


def write_shards(folder, vocabulary, length, seed):
    """Random walks over the vocabulary: a neighbour is likely to be near."""
    rng = np.random.default_rng(seed)
    for number in range(SHARDS):
        start = rng.integers(FIRST, vocabulary, (ROWS_PER_SHARD, 1))
        steps = rng.integers(-20, 21, (ROWS_PER_SHARD, length - 1))
        walk = np.concatenate([start, steps], axis=1).cumsum(axis=1)
        tokens = (walk - FIRST) % (vocabulary - FIRST) + FIRST
        weights = rng.random((ROWS_PER_SHARD, length)).astype(np.float32)
        np.savez_compressed(folder / f"shard-{number:05d}.npz", tokens=tokens, weights=weights)


class ShardedTokens(Dataset):
    """One row of one shard at a time."""

    def __init__(self, folder):
        self.paths = sorted(folder.glob("shard-*.npz"))
        self.rows = [np.load(path)["tokens"].shape[0] for path in self.paths]
        self.ends = np.cumsum(self.rows)

    def __len__(self):
        return int(self.ends[-1])

    def __getitem__(self, index):
        shard = int(np.searchsorted(self.ends, index, side="right"))
        row = index - (self.ends[shard - 1] if shard else 0)
        with np.load(self.paths[shard]) as archive:  # culprit: input
            tokens = archive["tokens"][row]  # cost: input
        return {"input_ids": torch.from_numpy(tokens)}


class MaskTokens:
    """Collates rows, and hides some of their tokens for the model to find."""

    def __init__(self, vocabulary, seed, share=0.15):
        self.vocabulary, self.share = vocabulary, share
        self.generator = torch.Generator().manual_seed(seed)

    def __call__(self, rows):
        labels = torch.stack([row["input_ids"] for row in rows])
        hidden = torch.rand(labels.shape, generator=self.generator) < self.share
        hidden[:, 0] = True
        input_ids = labels.masked_fill(hidden, MASK)
        return {
            "input_ids": input_ids,
            "attention_mask": (input_ids != PAD).long(),
            "labels": labels.masked_fill(~hidden, -100),
        }
