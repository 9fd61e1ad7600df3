"""Double DQN with a dueling head and a slowly following target net."""

import copy
import random

import torch
from torch import nn
from torch.nn import functional as F


class DuelingNet(nn.Module):
    def __init__(self, inputs, actions, width):
        super().__init__()
        self.trunk = nn.Sequential(
            nn.Linear(inputs, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU()
        )
        self.value = nn.Linear(width, 1)
        self.advantage = nn.Linear(width, actions)

    def forward(self, x):
        x = self.trunk(x)
        advantage = self.advantage(x)
        return self.value(x) + advantage - advantage.mean(dim=-1, keepdim=True)


class Agent:
    def __init__(self, inputs, actions, cfg):
        self.cfg = cfg
        self.actions = actions
        self.online = DuelingNet(inputs, actions, cfg.width)
        self.target = copy.deepcopy(self.online).requires_grad_(False)
        self.optimizer = torch.optim.Adam(self.online.parameters(), lr=cfg.lr, fused=True)
        self.online_params = list(self.online.parameters())
        self.target_params = list(self.target.parameters())
        self.rng = random.Random(cfg.seed)

    @torch.no_grad()
    def act(self, observation, epsilon):
        if self.rng.random() < epsilon:
            return self.rng.randrange(self.actions)
        return int(self.online(torch.from_numpy(observation)).argmax())

    def learn(self, batch):
        q = self.online(batch.state).gather(1, batch.action.unsqueeze(1)).squeeze(1)
        with torch.no_grad():
            best = self.online(batch.next_state).argmax(dim=1, keepdim=True)
            ahead = self.target(batch.next_state).gather(1, best).squeeze(1)
            goal = batch.reward + self.cfg.gamma * (1.0 - batch.done) * ahead
        loss = F.smooth_l1_loss(q, goal)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()
        self.follow()
        return loss.item()

    @torch.no_grad()
    def follow(self):
        torch._foreach_lerp_(self.target_params, self.online_params, self.cfg.tau)
