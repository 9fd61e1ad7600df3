"""Batches in which rare species turn up as often as common ones."""

import numpy as np
from torch.utils.data import Sampler


def rarity_weights(labels, power=0.8):
    """One weight per crop: the rarer its species, the larger; together they are 1."""
    counts = np.bincount(labels)
    weights = 1.0 / counts[labels].astype(np.float64) ** power
    return weights / weights.sum()


class RarityBatchSampler(Sampler):
    """Draws whole batches with replacement, by the weights of the crops."""

    def __init__(self, labels, batch_size, batches, power=0.8, seed=0):
        self.weights = rarity_weights(labels, power)
        self.batch_size = batch_size
        self.batches = batches
        self.seed = seed
        self.epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __len__(self):
        return self.batches

    def __iter__(self):
        rng = np.random.RandomState(self.seed + self.epoch)
        crops = len(self.weights)
        for _ in range(self.batches):
            drawn = rng.choice(crops, size=self.batch_size, p=self.weights)  # culprit: input
            yield drawn.tolist()
