"""Recordings of birds as arrays, as the signal library returns them."""

import numpy as np


class PairSampler:
    """Half of the pairs are two recordings of one bird."""

    def __init__(self, config, birds=40, recordings=8):
        self.rng = np.random.default_rng(0)
        self.pairs = config.pairs
        shape = config.bands, config.frames
        voices = self.rng.normal(size=(birds, 1, *shape))
        noise = self.rng.normal(size=(birds, recordings, *shape))
        self.spectrograms = (voices + 0.7 * noise).astype(np.float32)

    def draw(self):
        birds, recordings = self.spectrograms.shape[:2]
        left, right, same = [], [], []
        for number in range(self.pairs):
            first, second = self.rng.choice(birds, 2, replace=False)
            alike = number % 2 == 0
            a, b = self.rng.choice(recordings, 2, replace=False)
            left.append(self.spectrograms[first, a])
            right.append(self.spectrograms[first if alike else second, b])
            same.append(alike)
        return left, right, same
