"""What the agent remembers: one frame per step; what goes into a batch is put together later."""

import random

import numpy as np
import torch

HISTORY, AHEAD = 4, 3


class ReplayMemory:
    """The latest frames; the oldest is overwritten when a new one comes."""

    def __init__(self, capacity, observations, gamma):
        self.capacity, self.gamma, self.pushed = capacity, gamma, 0
        self.frames = np.zeros((capacity, observations), np.float32)
        self.actions = np.zeros(capacity, np.int64)
        self.rewards = np.zeros(capacity, np.float32)
        self.ended = np.zeros(capacity, bool)

    def push(self, frame, action, reward, done):
        at = self.pushed % self.capacity
        self.frames[at], self.actions[at] = frame, action
        self.rewards[at], self.ended[at] = reward, done
        self.pushed += 1

    def history(self, at):
        """The frame and those before it, as far as they are of the same episode."""
        frames = np.zeros((HISTORY, self.frames.shape[1]), np.float32)
        for back in range(HISTORY):
            if back and self.ended[(at - back) % self.capacity]:
                break
            frames[back] = self.frames[(at - back) % self.capacity]  # cost: input
        return frames.ravel()

    def outcome(self, at):
        """The discounted reward of the next steps, and whether the episode ended meanwhile."""
        total = 0.0
        for step in range(AHEAD):
            total += self.gamma**step * float(self.rewards[(at + step) % self.capacity])
            if self.ended[(at + step) % self.capacity]:
                return total, 1.0
        return total, 0.0

    def sample(self, count):
        """Batches of observation, action, reward, observation afterwards, end of the episode."""
        oldest = self.pushed - min(self.pushed, self.capacity)
        places = range(oldest + HISTORY, self.pushed - AHEAD)
        chosen = random.sample(places, count)
        before = [self.history(at) for at in chosen]  # culprit: input
        after = [self.history(at + AHEAD) for at in chosen]
        outcomes = [self.outcome(at) for at in chosen]
        reward, done = torch.tensor(outcomes).T
        return (
            torch.from_numpy(np.stack(before)),
            torch.from_numpy(self.actions[[at % self.capacity for at in chosen]]),
            reward,
            torch.from_numpy(np.stack(after)),
            done,
        )
