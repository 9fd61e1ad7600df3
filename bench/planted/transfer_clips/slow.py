"""Recognises gestures in short clips with a convolution over space and time.

python slow.py --width 12 --batch-size 6
"""

import argparse
import logging
from pathlib import Path

import torch
from clips.config import Config
from clips.loading import ClipDataset, prepare
from clips.network import GestureNet
from torch import nn
from torch.utils.data import DataLoader

log = logging.getLogger("gestures")


def build_loader(config):
    return DataLoader(
        ClipDataset(config),
        batch_size=config.batch_size,
        shuffle=True,
        drop_last=True,
        num_workers=config.workers,
        persistent_workers=True,
        generator=torch.Generator().manual_seed(config.seed),
    )


class Training:
    def __init__(self, config):
        self.config = config
        self.loader = build_loader(config)
        self.model = GestureNet(config)
        self.criterion = nn.CrossEntropyLoss()
        self.optimizer = torch.optim.SGD(
            self.model.parameters(), lr=config.lr, momentum=0.9, nesterov=True
        )

    def learn(self, clips, gestures):
        logits = self.model(prepare(clips))
        loss = self.criterion(logits, gestures)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item(), (logits.argmax(1) == gestures).float().mean().item()

    def resume(self, path):
        """Go on where an earlier run stopped, if it left anything."""
        if path is None or not path.exists():
            return
        state = torch.load(path, weights_only=True)
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        log.info("resumed from %s", path)

    def save(self, path):
        if path is None:
            return
        torch.save(
            {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}, path
        )

    def run(self, steps):
        step = 0
        while step < steps:
            for clips, gestures in self.loader:
                loss, right = self.learn(clips, gestures)
                print(f"step {step} loss {loss:.6f} right {right:.2f}")
                step += 1
                if step == steps:
                    break


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--width", type=int, default=Config.width)
    parser.add_argument("--batch-size", type=int, default=Config.batch_size)
    parser.add_argument("--checkpoint", type=Path, default=None)
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO)
    config = Config(width=args.width, batch_size=args.batch_size)
    log.info("%s", config)
    torch.manual_seed(config.seed)
    torch.set_num_threads(1)
    training = Training(config)
    training.resume(args.checkpoint)
    training.run(args.steps)
    training.save(args.checkpoint)


if __name__ == "__main__":
    main()
