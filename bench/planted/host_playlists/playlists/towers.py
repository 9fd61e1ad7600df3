import torch
from torch import nn
from torch.nn import functional as F


class TrackTower(nn.Module):
    def __init__(self, features, width):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(features, 128), nn.GELU(), nn.Linear(128, width))

    def forward(self, features):
        return F.normalize(self.layers(features), dim=-1)


class SessionTower(nn.Module):
    def __init__(self, features, width):
        super().__init__()
        self.enter = nn.Linear(features, width)
        self.rnn = nn.GRU(width, width, batch_first=True)

    def forward(self, features):
        _, last = self.rnn(F.gelu(self.enter(features)))
        return F.normalize(last[0], dim=-1)


class TwoTowers(nn.Module):
    def __init__(self, catalogue, width=48, temperature=0.07):
        super().__init__()
        self.register_buffer("catalogue", catalogue)
        features = catalogue.shape[1]
        self.session, self.track = SessionTower(features, width), TrackTower(features, width)
        self.temperature = temperature

    def forward(self, heard, following):
        """Scores of every session against every track of the batch."""
        sessions = self.session(self.catalogue[heard])
        tracks = self.track(self.catalogue[following])
        return sessions @ tracks.T / self.temperature
