"""Listening sessions: 20 tracks heard, one track that came next."""

from dataclasses import dataclass

import torch


@dataclass
class Batch:
    heard: torch.Tensor  # (batch, 20) track numbers
    following: torch.Tensor  # (batch,)


class Sessions:
    """Tracks lie on a map of tastes; a session wanders around one place of the map."""

    def __init__(self, tracks, features, sessions, length, seed):
        self.random = torch.Generator().manual_seed(seed)
        self.features = torch.randn(tracks, features, generator=self.random)
        middle = torch.randint(0, tracks, (sessions, 1), generator=self.random)
        # popular tracks have low numbers
        wander = torch.randn(sessions, length + 1, generator=self.random) * 150
        hits = torch.rand(sessions, length + 1, generator=self.random).pow(6) * tracks
        popular = torch.rand(sessions, length + 1, generator=self.random) < 0.3
        self.tracks = torch.where(popular, hits, middle + wander).long().clamp(0, tracks - 1)

    def batches(self, size):
        while True:
            order = torch.randperm(len(self.tracks), generator=self.random)
            for rows in order.split(size):
                if len(rows) == size:
                    chosen = self.tracks[rows]
                    yield Batch(chosen[:, :-1], chosen[:, -1])
