"""Offline Q-learning for a robot gripper that looks down on the table with a depth camera.

The recorded grasps are kept in a replay memory, as in the old DQN tutorials. Twelve discrete
actions (four directions, up/down, rotate left/right, open/close, two speeds of lowering).
"""

import copy
import os
import random
from collections import namedtuple

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

STEPS = int(os.environ.get("STEPS", 50_000))
ACTIONS = 12
SIDE = 36
GAMMA = 0.97
BATCH = 48
TARGET_EVERY = 100

Transition = namedtuple("Transition", "frame action reward following done")


class ReplayMemory:
    """Frames live in one list (each is the `following` of its predecessor), the rest in tuples."""

    def __init__(self):
        self.frames = []
        self.transitions = []

    def __len__(self):
        return len(self.transitions)

    def record(self, episodes, length, rng):
        for _ in range(episodes):
            goal = rng.integers(4, SIDE - 4, size=2)
            table = rng.random((SIDE, SIDE), dtype=np.float32) * 0.1
            table[goal[0] - 2 : goal[0] + 2, goal[1] - 2 : goal[1] + 2] += 0.8
            for t in range(length):
                noise = rng.random((SIDE, SIDE), dtype=np.float32) * 0.05
                self.frames.append(table + noise)
                done = t == length - 1
                action = int(rng.integers(ACTIONS))
                reward = float(done and action < 4) - 0.01
                here = len(self.frames) - 1
                self.transitions.append(
                    Transition(here, action, reward, here if done else here + 1, done)
                )

    def sample(self, rng):
        return rng.sample(self.transitions, BATCH)

    def look(self, rows):
        """The camera images of the given rows, (rows, 1, side, side)."""
        frames = self.frames
        batch = torch.tensor([frames[i] for i in rows])  # culprit: transfer
        return batch.unsqueeze(1)


class GraspQ(nn.Module):
    def __init__(self):
        super().__init__()
        self.eye = nn.Sequential(
            nn.Conv2d(1, 24, 5, stride=3, padding=1),
            nn.ReLU(),
            nn.Conv2d(24, 32, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(32, 48, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(48, 32, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Flatten(),
        )
        self.value = nn.Linear(32 * 9, 1)
        self.advantage = nn.Linear(32 * 9, ACTIONS)

    def forward(self, image):
        seen = self.eye(image)
        advantage = self.advantage(seen)
        return self.value(seen) + advantage - advantage.mean(1, keepdim=True)


class Agent:
    def __init__(self, memory):
        self.memory = memory
        self.online = GraspQ()
        self.target = copy.deepcopy(self.online).requires_grad_(False)
        self.optimizer = torch.optim.RMSprop(self.online.parameters(), lr=2.5e-4)
        self.updates = 0

    @torch.no_grad()
    def bootstrap(self, images, reward, done):
        # double DQN: the online net chooses, the target net judges
        choice = self.online(images).argmax(1, keepdim=True)
        future = self.target(images).gather(1, choice).squeeze(1)
        return reward + GAMMA * future * (1 - done)

    def update(self, transitions):
        batch = Transition(*zip(*transitions))
        action = torch.tensor(batch.action)
        reward = torch.tensor(batch.reward)
        done = torch.tensor(batch.done, dtype=torch.float32)

        wanted = self.bootstrap(self.memory.look(batch.following), reward, done)
        q = self.online(self.memory.look(batch.frame)).gather(1, action[:, None]).squeeze(1)
        loss = F.smooth_l1_loss(q, wanted)

        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.online.parameters(), 10.0)
        self.optimizer.step()

        self.updates += 1
        if self.updates % TARGET_EVERY == 0:
            self.target.load_state_dict(self.online.state_dict())
        return loss.item(), q.mean().item()


def main():
    torch.manual_seed(3)
    rng = random.Random(3)
    memory = ReplayMemory()
    memory.record(episodes=400, length=15, rng=np.random.default_rng(3))
    agent = Agent(memory)
    for step in range(STEPS):
        loss, q = agent.update(memory.sample(rng))
        print(f"update {step} td-loss {loss:.6f} mean q {q:.4f} memory {len(memory)}")


if __name__ == "__main__":
    main()
