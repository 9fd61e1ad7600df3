"""Trains a vision transformer on tiles of maps in four micro-batches per update.

    python slow.py --amp --accumulate 8

One micro-batch after the other, because a whole batch does not fit where this usually runs.
"""

import argparse
import logging
from contextlib import nullcontext
from dataclasses import dataclass

import torch
from tiles import MapTiles
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

log = logging.getLogger("tiles")


@dataclass
class Config:
    side: int = 64
    patch: int = 8
    width: int = 128
    depth: int = 2
    kinds: int = 10
    micro_batch: int = 12
    accumulate: int = 4
    lr: float = 5e-4
    amp: bool = False
    workers: int = 1


class TileTransformer(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.cut = nn.Conv2d(3, config.width, config.patch, stride=config.patch)
        places = (config.side // config.patch) ** 2
        self.places = nn.Parameter(0.02 * torch.randn(places, config.width))
        layer = nn.TransformerEncoderLayer(
            config.width, 4, 4 * config.width, dropout=0.0, batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, config.depth, enable_nested_tensor=False)
        self.head = nn.Linear(config.width, config.kinds)

    def forward(self, tiles):
        patches = self.cut(tiles).flatten(2).transpose(1, 2)
        return self.head(self.encoder(patches + self.places).mean(1))


def micro_batches(loader):
    while True:
        yield from loader


def train(config, steps):
    loader = DataLoader(
        MapTiles(3072, config.side, config.kinds),
        batch_size=config.micro_batch,
        drop_last=True,
        num_workers=config.workers,
        persistent_workers=True,
    )
    model = TileTransformer(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=config.lr, fused=True)
    lower = torch.autocast("cpu", dtype=torch.bfloat16) if config.amp else nullcontext()
    batches = micro_batches(loader)
    for step in range(steps):
        total = 0.0
        optimizer.zero_grad()
        for _ in range(config.accumulate):
            tiles, kinds = next(batches)
            with lower:
                loss = F.cross_entropy(model(tiles), kinds) / config.accumulate
            loss.backward()
            total += loss.item()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        print(f"step {step} loss {total:.6f}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--accumulate", type=int, default=Config.accumulate)
    parser.add_argument("--amp", action="store_true", help="bfloat16 where it is safe")
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO)
    config = Config(accumulate=args.accumulate, amp=args.amp)
    log.info("%s", config)
    torch.manual_seed(0)
    torch.set_num_threads(1)
    train(config, args.steps)


if __name__ == "__main__":
    main()
