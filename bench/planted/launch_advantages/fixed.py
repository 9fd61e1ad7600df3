"""Trains an actor and critic on recorded rollouts of many robots at once.

The advantages of all moments are one product with the powers of the decay.
"""

import argparse

import torch
from torch import nn
from torch.distributions import Categorical
from torch.nn import functional as F


class ActorCritic(nn.Module):
    def __init__(self, observation=48, actions=6, hidden=192):
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(observation, hidden), nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh()
        )
        self.actor = nn.Linear(hidden, actions)
        self.critic = nn.Linear(hidden, 1)

    def forward(self, observations):
        features = self.body(observations)
        return Categorical(logits=self.actor(features)), self.critic(features).squeeze(-1)


class Agent:
    gamma = 0.99
    lam = 0.95

    def __init__(self, horizon=640, robots=8):
        self.horizon, self.robots = horizon, robots
        moments = torch.arange(horizon)
        ages = moments - moments[:, None]
        self.decay = ((self.gamma * self.lam) ** ages.clamp(min=0)).triu()
        self.net = ActorCritic()
        self.optim = torch.optim.SGD(self.net.parameters(), lr=0.01)

    def record(self):
        obs = torch.randn(self.horizon, self.robots, 48)
        actions = torch.randint(6, (self.horizon, self.robots))
        rewards = torch.randn(self.horizon, self.robots) + obs[..., 0]
        return obs, actions, rewards

    def advantages(self, rewards, values):
        following = F.pad(values[1:], (0, 0, 0, 1))
        return self.decay @ (rewards + self.gamma * following - values)

    def update(self, obs, actions, rewards):
        policy, values = self.net(obs)
        advantages = self.advantages(rewards, values.detach())
        returns = advantages + values.detach()
        scaled = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
        policy_loss = -(scaled * policy.log_prob(actions)).mean()
        value_loss = F.smooth_l1_loss(values, returns)
        loss = policy_loss + 0.5 * value_loss - 0.01 * policy.entropy().mean()
        self.optim.zero_grad()
        loss.backward()
        self.optim.step()
        return loss.item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100_000)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(2)
    agent = Agent()
    rollouts = [agent.record() for _ in range(4)]
    for update in range(args.steps):
        loss = agent.update(*rollouts[update % len(rollouts)])
        print(f"update {update} | loss {loss:.6f}")


if __name__ == "__main__":
    main()
