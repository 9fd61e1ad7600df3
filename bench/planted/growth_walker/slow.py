"""Actor-critic on a made-up walker: many copies of the world side by side, short rollouts."""

import argparse
import os

import torch
from torch import nn
from torch.distributions import Normal
from torch.nn import functional as F

OBSERVATIONS, TORQUES = 24, 6


class Walkers:
    """A damped, randomly coupled linear system: good enough to be balanced."""

    def __init__(self, count, seed):
        self.random = torch.Generator().manual_seed(seed)
        coupling = torch.randn(OBSERVATIONS, OBSERVATIONS, generator=self.random)
        self.dynamics = 0.97 * torch.linalg.qr(coupling).Q
        self.muscles = torch.randn(TORQUES, OBSERVATIONS, generator=self.random) * 0.2
        self.scale = torch.logspace(-1, 1, OBSERVATIONS)  # metres, radians, newtons...
        self.state = torch.randn(count, OBSERVATIONS, generator=self.random)

    def observe(self):
        return self.state * self.scale

    def act(self, torque):
        wind = torch.randn(self.state.shape, generator=self.random) * 0.1
        self.state = self.state @ self.dynamics + torque.clamp(-2, 2) @ self.muscles + wind
        return 1 - self.state.square().mean(1) - 0.01 * torque.square().mean(1)


class ObservationNormalizer:
    """Brings the sensors to mean 0 and deviation 1, by all that was seen up to now."""

    def __init__(self, features):
        self.seen = torch.empty(0, features)
        self.mean, self.std = torch.zeros(features), torch.ones(features)

    def update(self, observations):
        self.seen = torch.cat([self.seen, observations])  # culprit: growth
        self.std, self.mean = torch.std_mean(self.seen, dim=0)

    def __call__(self, observations):
        return ((observations - self.mean) / (self.std + 1e-5)).clamp(-8, 8)


class ActorCritic(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(OBSERVATIONS, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh()
        )
        self.actor = nn.Linear(width, TORQUES)
        self.critic = nn.Linear(width, 1)
        self.log_std = nn.Parameter(torch.full((TORQUES,), -0.5))

    def forward(self, x):
        hidden = self.body(x)
        policy = Normal(self.actor(hidden), self.log_std.exp(), validate_args=False)
        return policy, self.critic(hidden).squeeze(-1)


class Learner:
    def __init__(self, args):
        self.args = args
        self.world = Walkers(args.walkers, args.seed)
        self.normalize = ObservationNormalizer(OBSERVATIONS)
        self.net = ActorCritic(args.width)
        self.optimizer = torch.optim.Adam(self.net.parameters(), lr=args.lr)

    @torch.no_grad()
    def rollout(self):
        raw, seen, torques, rewards = [], [], [], []
        for _ in range(self.args.horizon):
            raw.append(self.world.observe())
            seen.append(self.normalize(raw[-1]))
            policy, _ = self.net(seen[-1])
            torques.append(policy.sample())
            rewards.append(self.world.act(torques[-1]))
        _, value = self.net(self.normalize(self.world.observe()))
        returns = []
        for reward in reversed(rewards):
            value = reward + self.args.gamma * value
            returns.insert(0, value)
        self.normalize.update(torch.cat(raw))
        return torch.cat(seen), torch.cat(torques), torch.cat(returns), torch.stack(rewards).mean()

    def update(self):
        seen, torques, returns, reward = self.rollout()
        policy, value = self.net(seen)
        advantage = (returns - value).detach()
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-6)
        gain = (policy.log_prob(torques).sum(-1) * advantage).mean()
        loss = F.mse_loss(value, returns) - gain - 0.001 * policy.entropy().sum(-1).mean()
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.net.parameters(), 0.5)
        self.optimizer.step()
        return loss.item(), reward.item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--walkers", type=int, default=128)
    parser.add_argument("--horizon", type=int, default=8)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--gamma", type=float, default=0.98)
    parser.add_argument("--lr", type=float, default=3e-4)
    parser.add_argument("--updates", type=int, default=int(os.environ.get("STEPS", 3000)))
    parser.add_argument("--seed", type=int, default=8)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    learner = Learner(args)
    for number in range(args.updates):
        loss, reward = learner.update()
        print(f"update {number} loss {loss:.6f} reward {reward:.4f}")


if __name__ == "__main__":
    main()
