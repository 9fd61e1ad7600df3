"""Two-tower retrieval: what should the playlist play next? In-batch softmax."""

import argparse
import os

import torch
from playlists.data import Sessions
from playlists.metrics import BatchRecall, Exposure, Smoothed
from playlists.towers import TwoTowers
from torch.nn import functional as F

parser = argparse.ArgumentParser()
parser.add_argument("--tracks", type=int, default=120_000)
parser.add_argument("--features", type=int, default=32)
parser.add_argument("--sessions", type=int, default=40_000)
parser.add_argument("--batch", type=int, default=192)
parser.add_argument("--lr", type=float, default=2e-3)
parser.add_argument("--steps", type=int, default=int(os.environ.get("STEPS", 30_000)))
parser.add_argument("--seed", type=int, default=1)


class Monitor:
    """Collects the metrics and writes the line of a step."""

    def __init__(self, tracks):
        self.loss, self.recall, self.exposure = Smoothed(), BatchRecall(), Exposure(tracks)

    def observe(self, loss, scores, batch):
        self.loss.add(loss)
        self.recall.update(scores)
        self.exposure.update(batch.following[scores.argmax(1)])

    def line(self, step, loss):
        return (
            f"[{step}] loss {loss:.6f} (avg {self.loss.value:.4f}) "
            f"recall@10 {self.recall.value:.3f} gini {self.exposure.gini:.4f}"
        )


def main():
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    sessions = Sessions(args.tracks, args.features, args.sessions, length=20, seed=args.seed)
    model = TwoTowers(sessions.features)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    monitor = Monitor(args.tracks)
    own = torch.arange(args.batch)

    for step, batch in zip(range(args.steps), sessions.batches(args.batch)):
        scores = model(batch.heard, batch.following)
        loss = F.cross_entropy(scores, own)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        monitor.observe(loss.item(), scores.detach(), batch)
        print(monitor.line(step, loss.item()))


if __name__ == "__main__":
    main()
