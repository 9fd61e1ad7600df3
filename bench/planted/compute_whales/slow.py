"""Finds the calls of whales in recordings of the sea, which two loader processes make ready.

    python slow.py --width 32

Each recording is filtered, mixed with noise and turned into a spectrogram when it is asked for.
"""

import argparse
import logging
from dataclasses import dataclass

import torch
from torch import nn
from torch.utils.data import DataLoader
from whales.network import WhaleNet
from whales.sea import SeaRecordings

log = logging.getLogger("whales")


@dataclass
class Config:
    recordings: int = 256
    seconds: int = 4
    rate: int = 2000
    bands: int = 128
    width: int = 20
    batch_size: int = 16
    lr: float = 3e-3
    workers: int = 2
    seed: int = 19


class EarlyStop:
    """Has the loss not fallen for a long time?"""

    def __init__(self, patience=100_000):
        self.patience, self.best, self.since = patience, float("inf"), 0

    def __call__(self, loss):
        self.since = 0 if loss < self.best else self.since + 1
        self.best = min(self.best, loss)
        return self.since > self.patience


def train(config, steps):
    dataset = SeaRecordings(config)
    loader = DataLoader(
        dataset,
        batch_size=config.batch_size,
        shuffle=True,
        drop_last=True,
        num_workers=config.workers,
        persistent_workers=True,
        generator=torch.Generator().manual_seed(config.seed),
    )
    model = WhaleNet(config)
    criterion = nn.BCEWithLogitsLoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=config.lr)
    stop = EarlyStop()
    log.info("%d recordings, %d workers", len(dataset), config.workers)
    step = 0
    while True:
        for spectrograms, calls in loader:
            loss = criterion(model(spectrograms), calls)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(f"step {step} loss {loss.item():.6f}")
            step += 1
            if step == steps or stop(loss.item()):
                return


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--width", type=int, default=Config.width)
    parser.add_argument("--workers", type=int, default=Config.workers)
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO)
    config = Config(width=args.width, workers=args.workers)
    torch.manual_seed(config.seed)
    torch.set_num_threads(1)
    train(config, args.steps)


if __name__ == "__main__":
    main()
