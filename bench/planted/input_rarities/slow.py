"""Teaches a small mixer the species of plankton, with batches balanced by rarity."""

import argparse
import logging
import sys

import torch
from plankton.data import SPECIES, Crops, collate
from plankton.model import PlanktonMixer
from plankton.sampling import RarityBatchSampler
from torch.nn import functional as F
from torch.utils.data import DataLoader

log = logging.getLogger("plankton")


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--crops", type=int, default=1_500_000)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--batches-per-epoch", type=int, default=5000)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--lr", type=float, default=0.02)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


class Trainer:
    def __init__(self, model, loader, sampler, args):
        self.model, self.loader, self.sampler, self.args = model, loader, sampler, args
        self.optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
        self.seen = torch.zeros(SPECIES, dtype=torch.long)
        self.step = 0

    def train_step(self, batch):
        scores = self.model(batch["pixels"])
        loss = F.cross_entropy(scores, batch["label"], label_smoothing=0.05)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()
        self.seen += torch.bincount(batch["label"], minlength=SPECIES)
        return loss.item()

    def fit(self):
        epoch = 0
        while self.step < self.args.steps:
            self.sampler.set_epoch(epoch)
            for batch in self.loader:
                loss = self.train_step(batch)
                print(f"step {self.step} loss {loss:.6f}", flush=True)
                self.step += 1
                if self.step == self.args.steps:
                    return
            epoch += 1
            log.info("epoch %d over, rarest species seen %d times", epoch, self.seen.min())


def main():
    args = parse_args()
    logging.basicConfig(stream=sys.stderr, level=logging.INFO)
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)
    crops = Crops(args.crops, seed=args.seed)
    sampler = RarityBatchSampler(
        crops.labels, args.batch_size, args.batches_per_epoch, seed=args.seed
    )
    loader = DataLoader(
        crops,
        batch_sampler=sampler,
        collate_fn=collate,
        num_workers=args.workers,
        persistent_workers=args.workers > 0,
    )
    Trainer(PlanktonMixer(), loader, sampler, args).fit()


if __name__ == "__main__":
    main()
