"""Trains a small residual network to tell birds apart by their photographs.

    python slow.py --width 48 --lr 0.05

A loader process opens, crops and shrinks the photographs of a batch.
"""

import argparse
import logging
import tempfile
from pathlib import Path

import torch
from birds.config import Config
from birds.data import BirdPhotos, take_photographs
from birds.model import SmallResNet
from torch import nn
from torch.utils.data import DataLoader

log = logging.getLogger("birds")


def parse_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--width", type=int, default=Config.width)
    parser.add_argument("--lr", type=float, default=Config.lr)
    parser.add_argument("--workers", type=int, default=Config.workers)
    return parser.parse_args()


def forever(loader):
    while True:
        yield from loader


class Meter:
    """A running mean that forgets slowly."""

    def __init__(self, momentum=0.98):
        self.momentum = momentum
        self.value = None

    def update(self, value):
        if self.value is None:
            self.value = value
        self.value = self.momentum * self.value + (1 - self.momentum) * value
        return self.value


def train(config, loader, steps):
    model = SmallResNet(config.width, config.species)
    criterion = nn.CrossEntropyLoss(label_smoothing=config.smoothing)
    optimizer = torch.optim.SGD(
        model.parameters(), lr=config.lr, momentum=0.9, weight_decay=config.weight_decay
    )
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=10_000)
    log.info("%d parameters", sum(p.numel() for p in model.parameters()))
    model.train()
    accuracy = Meter()
    for step, (photos, species) in zip(range(steps), forever(loader), strict=False):
        logits = model(photos)
        loss = criterion(logits, species)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        scheduler.step()
        right = (logits.argmax(1) == species).float().mean().item()
        print(f"step {step} loss {loss.item():.6f} accuracy {accuracy.update(right):.3f}")


def main():
    args = parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    config = Config(width=args.width, lr=args.lr, workers=args.workers)
    torch.manual_seed(config.seed)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        log.info("photographs in %s", folder)
        paths = take_photographs(Path(folder), config)
        dataset = BirdPhotos(paths, config)
        loader = DataLoader(
            dataset,
            batch_size=config.batch_size,
            shuffle=True,
            drop_last=True,
            num_workers=config.workers,
            persistent_workers=config.workers > 0,
        )
        train(config, loader, args.steps)


if __name__ == "__main__":
    main()
