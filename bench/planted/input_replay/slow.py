"""Learns to balance a row of poles with a double deep Q-network and a replay memory.

python slow.py --batch-size 512 --gamma 0.98
"""

import argparse
import random
from dataclasses import dataclass

import torch
from memory import AHEAD, HISTORY, ReplayMemory
from poles import PoleRow
from torch import nn
from torch.nn import functional as F


@dataclass
class Hyperparameters:
    batch_size: int = 1024
    gamma: float = 0.99
    lr: float = 3e-4
    epsilon: float = 0.2
    capacity: int = 20_000
    warm_up: int = 20_000
    sync_every: int = 250
    hidden: int = 160
    seed: int = 5


class QNetwork(nn.Module):
    """A dueling network: how good is the state, and how much better is each action?"""

    def __init__(self, observations, actions, hidden):
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(observations, hidden),
            nn.ReLU(),
            nn.Linear(hidden, hidden),
            nn.ReLU(),
        )
        self.value = nn.Linear(hidden, 1)
        self.advantage = nn.Linear(hidden, actions)

    def forward(self, observation):
        features = self.body(observation)
        advantage = self.advantage(features)
        return self.value(features) + advantage - advantage.mean(1, keepdim=True)


class Agent:
    def __init__(self, environment, hp):
        self.hp = hp
        sizes = HISTORY * environment.observations, environment.actions, hp.hidden
        self.online, self.target = QNetwork(*sizes), QNetwork(*sizes)
        self.target.load_state_dict(self.online.state_dict())
        self.optimizer = torch.optim.Adam(self.online.parameters(), lr=hp.lr, fused=True)
        self.actions = environment.actions

    @torch.no_grad()
    def act(self, observation):
        if random.random() < self.hp.epsilon:
            return random.randrange(self.actions)
        return int(self.online(torch.from_numpy(observation).unsqueeze(0)).argmax())

    def learn(self, batch):
        observation, action, reward, following, done = batch
        with torch.no_grad():
            best = self.online(following).argmax(1, keepdim=True)
            future = self.target(following).gather(1, best).squeeze(1)
            goal = reward + self.hp.gamma**AHEAD * future * (1 - done)
        taken = self.online(observation).gather(1, action.unsqueeze(1)).squeeze(1)
        loss = F.smooth_l1_loss(taken, goal)
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.online.parameters(), 10.0)
        self.optimizer.step()
        return loss

    def catch_up(self):
        self.target.load_state_dict(self.online.state_dict())


def play(environment, memory, frame, action):
    """One step; the frame that comes next, be it of a new episode."""
    following, reward, done = environment.step(action)
    memory.push(frame, action, reward, done)
    return environment.reset() if done else following


def train(hp, steps):
    environment = PoleRow(hp.seed)
    memory = ReplayMemory(hp.capacity, environment.observations, hp.gamma)
    agent = Agent(environment, hp)
    frame = environment.reset()
    for _ in range(hp.warm_up):
        frame = play(environment, memory, frame, random.randrange(environment.actions))
    for step in range(steps):
        action = agent.act(memory.history(memory.pushed - 1))
        frame = play(environment, memory, frame, action)
        loss = agent.learn(memory.sample(hp.batch_size))
        if (step + 1) % hp.sync_every == 0:
            agent.catch_up()
        print(f"step {step} loss {loss.item():.6f} reward {memory.rewards.mean():.4f}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--batch-size", type=int, default=Hyperparameters.batch_size)
    parser.add_argument("--gamma", type=float, default=Hyperparameters.gamma)
    args = parser.parse_args()
    hp = Hyperparameters(batch_size=args.batch_size, gamma=args.gamma)
    random.seed(hp.seed)
    torch.manual_seed(hp.seed)
    torch.set_num_threads(2)
    train(hp, args.steps)


if __name__ == "__main__":
    main()
