"""A cart with a row of poles that lean on springs: cheap physics with many numbers."""

import numpy as np

POLES = 24


class PoleRow:
    observations, actions = 2 * POLES, 5

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)
        self.springs = self.rng.uniform(0.5, 1.5, POLES).astype(np.float32)

    def reset(self):
        self.age = 0
        self.angle = self.rng.normal(0, 0.1, POLES).astype(np.float32)
        self.speed = np.zeros(POLES, np.float32)
        return np.concatenate([self.angle, self.speed])

    def step(self, action):
        push = np.float32((action - 2) * 0.3)
        self.speed = 0.98 * self.speed + 0.05 * (self.springs * self.angle - push)
        self.angle = self.angle + 0.05 * self.speed
        self.age += 1
        largest = float(np.abs(self.angle).max())
        done = largest > 1.0 or self.age >= 200
        return np.concatenate([self.angle, self.speed]), 1.0 - largest, done
