"""Gambling machines whose odds can be read from their lamps, all pulled at once."""

import torch


class Machines:
    observations, actions = 32, 8

    def __init__(self, games):
        self.games = games
        self.odds = torch.randn(self.observations, self.actions)
        self.lamps = torch.randn(games, self.observations)

    def observe(self):
        return self.lamps

    def pull(self, action):
        odds = torch.tanh(self.lamps @ self.odds / 6).gather(1, action.unsqueeze(1)).squeeze(1)
        reward = odds + 0.1 * torch.randn(self.games)
        done = torch.rand(self.games) < 0.05
        fresh = torch.randn(self.games, self.observations)
        self.lamps = torch.where(done.unsqueeze(1), fresh, 0.9 * self.lamps + 0.3 * fresh)
        return reward, done
