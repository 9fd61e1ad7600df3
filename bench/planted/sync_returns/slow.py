"""Plays a field of small gambling machines with an actor and a critic (A2C).

python slow.py --games 64 --horizon 24
"""

import argparse
from dataclasses import dataclass

import torch
from machines import Machines
from torch import nn


@dataclass
class Config:
    games: int = 64
    horizon: int = 24
    hidden: int = 128
    gamma: float = 0.97
    entropy: float = 0.01
    lr: float = 7e-4
    seed: int = 6


class ActorCritic(nn.Module):
    def __init__(self, observations, actions, hidden):
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(observations, hidden),
            nn.Tanh(),
            nn.Linear(hidden, hidden),
            nn.Tanh(),
        )
        self.actor = nn.Linear(hidden, actions)
        self.critic = nn.Linear(hidden, 1)

    def forward(self, observation):
        features = self.body(observation)
        return self.actor(features), self.critic(features).squeeze(-1)


def discount(rewards, dones, last, gamma):
    """What each state of each game was worth in the end."""
    horizon, games = rewards.shape
    returns = torch.zeros(horizon, games)
    rows = []
    for game in range(games):
        worth = last[game].item()
        row = []
        for t in reversed(range(horizon)):
            if dones[t, game]:  # culprit: sync
                worth = 0.0
            worth = rewards[t, game].item() + gamma * worth  # cost: sync
            row.append(worth)
        rows.append(row[::-1])
    returns.copy_(torch.tensor(rows).T)
    return returns


@torch.no_grad()
def play(model, machines, config):
    seen, chosen, rewards, dones = [], [], [], []
    for _ in range(config.horizon):
        observation = machines.observe()
        logits, _ = model(observation)
        action = torch.multinomial(logits.softmax(-1), 1).squeeze(1)
        reward, done = machines.pull(action)
        seen.append(observation)
        chosen.append(action)
        rewards.append(reward)
        dones.append(done)
    _, last = model(machines.observe())
    returns = discount(torch.stack(rewards), torch.stack(dones), last, config.gamma)
    return torch.stack(seen), torch.stack(chosen), returns


def learn(model, optimizer, seen, chosen, returns, config):
    logits, values = model(seen)
    logs = logits.log_softmax(-1)
    taken = logs.gather(-1, chosen.unsqueeze(-1)).squeeze(-1)
    advantage = (returns - values).detach()
    advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-6)
    entropy = -(logs.exp() * logs).sum(-1).mean()
    loss = -(taken * advantage).mean() + 0.5 * (returns - values).square().mean()
    loss = loss - config.entropy * entropy
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    optimizer.step()
    return loss


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--games", type=int, default=Config.games)
    parser.add_argument("--horizon", type=int, default=Config.horizon)
    args = parser.parse_args()
    config = Config(games=args.games, horizon=args.horizon)
    torch.manual_seed(config.seed)
    torch.set_num_threads(2)
    machines = Machines(config.games)
    model = ActorCritic(machines.observations, machines.actions, config.hidden)
    optimizer = torch.optim.RMSprop(model.parameters(), lr=config.lr, alpha=0.99)
    for step in range(args.steps):
        loss = learn(model, optimizer, *play(model, machines, config), config)
        print(f"step {step} loss {loss.item():.6f}")


if __name__ == "__main__":
    main()
