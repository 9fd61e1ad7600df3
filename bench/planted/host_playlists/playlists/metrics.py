"""What we watch while training: the loss, recall inside the batch, and whether we only push hits."""

from collections import Counter, deque

import torch


class Smoothed:
    def __init__(self, window=100):
        self.values = deque(maxlen=window)

    def add(self, value: float):
        self.values.append(value)

    @property
    def value(self) -> float:
        return sum(self.values) / max(1, len(self.values))


class BatchRecall:
    """Share of rows whose own track is among the k best of the batch."""

    def __init__(self, k=10):
        self.k = k
        self.history = Smoothed()

    @torch.no_grad()
    def update(self, scores):
        best = scores.topk(self.k, dim=1).indices
        own = torch.arange(len(scores))[:, None]
        self.history.add((best == own).any(1).float().mean().item())

    @property
    def value(self):
        return self.history.value


class Exposure:
    """How often each track was recommended so far. Gini 0: all alike, 1: always the same one."""

    def __init__(self, tracks: int):
        self.plays = Counter(dict.fromkeys(range(tracks), 0))

    def update(self, tracks):
        self.plays.update(tracks.tolist())

    @property
    def gini(self) -> float:
        counts = sorted(self.plays.values())  # culprit: host
        total = sum(counts)
        if not total:
            return 0.0
        n = len(counts)
        weighted = sum((rank + 1) * count for rank, count in enumerate(counts))  # cost: host
        return 2 * weighted / (n * total) - (n + 1) / n
