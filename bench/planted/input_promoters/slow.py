"""Regression of promoter activity from one-hot DNA."""

import os
from dataclasses import dataclass

import torch
from promoters.data import DataModule
from promoters.model import PromoterNet
from torch.nn import functional as F


@dataclass
class Cfg:
    genome_length: int = 4_000_000
    sites: int = 12_000
    window: int = 1024
    max_shift: int = 8
    batch_size: int = 64
    lr: float = 1e-3
    steps: int = int(os.environ.get("STEPS", 10_000))
    seed: int = 5


class Loop:
    """Epochs until enough steps; callbacks are plain functions of (loop, loss)."""

    def __init__(self, cfg, model, loader, callbacks=()):
        self.cfg, self.model, self.loader, self.callbacks = cfg, model, loader, callbacks
        self.optimizer = torch.optim.Adam(model.parameters(), lr=cfg.lr)
        self.step = 0
        self.smooth = None

    def run(self):
        while True:
            for planes, activity in self.loader:
                if self.step >= self.cfg.steps:
                    return
                loss = F.huber_loss(self.model(planes), activity)
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()
                for callback in self.callbacks:
                    callback(self, loss.item())
                self.step += 1


def smoothing(loop, loss):
    loop.smooth = loss if loop.smooth is None else 0.98 * loop.smooth + 0.02 * loss


def report(loop, loss):
    print(f"{loop.step} loss={loss:.6f} smooth={loop.smooth:.4f}")


if __name__ == "__main__":
    cfg = Cfg()
    torch.manual_seed(cfg.seed)
    data = DataModule(cfg)
    Loop(cfg, PromoterNet(), data.train_loader(), callbacks=(smoothing, report)).run()
