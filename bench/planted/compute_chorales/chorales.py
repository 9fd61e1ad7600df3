"""Chorales in several streams, and the network that reads them."""

import torch
from torch import nn


class Chorale:
    def __init__(self, streams, notes, length=20_000):
        steps = torch.randint(-3, 4, (streams, length))
        self.notes = (steps.cumsum(1) + 40) % notes


class NoteModel(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.embed = nn.Embedding(config.notes, config.hidden)
        self.lstm = nn.LSTM(config.hidden, config.hidden, config.layers, batch_first=True)
        self.out = nn.Linear(config.hidden, config.notes)

    def forward(self, notes, state):
        states, state = self.lstm(self.embed(notes), state)
        return self.out(states), state
