"""Replay memory."""

import random
from collections import deque, namedtuple

import torch

Transition = namedtuple("Transition", "state action reward next_state done")


class ReplayMemory:
    """Ring of transitions. States are kept as plain Python data, so the memory can be pickled
    and moved between library versions."""

    def __init__(self, capacity, seed):
        self.ring = deque(maxlen=capacity)
        self.rng = random.Random(seed)

    def __len__(self):
        return len(self.ring)

    def push(self, state, action, reward, next_state, done):
        self.ring.append(
            Transition(self.pack(state), action, reward, self.pack(next_state), float(done))
        )

    @staticmethod
    def pack(state):
        return state.tolist()

    @staticmethod
    def unpack(states):
        return torch.tensor(states, dtype=torch.float32)  # culprit: transfer

    def sample(self, size):
        drawn = [self.ring[i] for i in self.rng.sample(range(len(self.ring)), size)]
        batch = Transition(*zip(*drawn))
        return Transition(
            state=self.unpack(batch.state),
            action=torch.tensor(batch.action),
            reward=torch.tensor(batch.reward),
            next_state=self.unpack(batch.next_state),
            done=torch.tensor(batch.done),
        )
