"""Learns to dispatch lifts."""

import os
from dataclasses import dataclass

import torch

from agent.building import ACTIONS, Building
from agent.dqn import Agent
from agent.replay import ReplayMemory


@dataclass
class Config:
    updates: int = int(os.environ.get("STEPS", 20_000))
    memory: int = 50_000
    warmup: int = 1500
    batch_size: int = 192
    acts_per_update: int = 2
    width: int = 448
    lr: float = 3e-4
    gamma: float = 0.98
    tau: float = 0.01
    epsilon_start: float = 1.0
    epsilon_end: float = 0.05
    epsilon_decay: int = 4000
    seed: int = 3


class Runner:
    def __init__(self, cfg):
        self.cfg = cfg
        self.building = Building(cfg.seed)
        self.agent = Agent(self.building.observation_size, ACTIONS, cfg)
        self.memory = ReplayMemory(cfg.memory, cfg.seed)
        self.observation = self.building.reset()

    def epsilon(self, update):
        share = min(1.0, update / self.cfg.epsilon_decay)
        return self.cfg.epsilon_start + share * (self.cfg.epsilon_end - self.cfg.epsilon_start)

    def interact(self, epsilon):
        action = self.agent.act(self.observation, epsilon)
        following, reward, done = self.building.step(action)
        self.memory.push(self.observation, action, reward, following, done)
        self.observation = self.building.reset() if done else following

    def run(self):
        for _ in range(self.cfg.warmup):
            self.interact(epsilon=1.0)
        for update in range(self.cfg.updates):
            for _ in range(self.cfg.acts_per_update):
                self.interact(self.epsilon(update))
            batch = self.memory.sample(self.cfg.batch_size)
            loss = self.agent.learn(batch)
            print(f"update {update} td {loss:.6f}")


if __name__ == "__main__":
    config = Config()
    torch.manual_seed(config.seed)
    Runner(config).run()
