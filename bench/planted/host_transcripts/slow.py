"""Trains a recogniser of spoken digits with the CTC loss; a report follows the error rate.

python slow.py --hidden 64
"""

import argparse
import logging

import torch
from speech.network import Recogniser
from speech.report import ErrorReport
from speech.sounds import SpokenDigits, collate
from torch import nn
from torch.utils.data import DataLoader

log = logging.getLogger("speech")


def parse_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--hidden", type=int, default=48)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--seed", type=int, default=4)
    return parser.parse_args()


def build_loader(args):
    order = torch.Generator().manual_seed(args.seed)
    return DataLoader(
        SpokenDigits(640, args.seed),
        batch_size=args.batch_size,
        shuffle=True,
        drop_last=True,
        collate_fn=collate,
        num_workers=1,
        persistent_workers=True,
        generator=order,
    )


class Trainer:
    def __init__(self, args):
        self.loader = build_loader(args)
        self.model = Recogniser(args.hidden)
        self.criterion = nn.CTCLoss(zero_infinity=True)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=args.lr)
        self.report = ErrorReport()
        self.step = 0

    def train_step(self, batch):
        sounds, lengths, digits, counts = batch
        scores = self.model(sounds)
        loss = self.criterion(scores.transpose(0, 1), digits, lengths, counts)
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.report.add(self.step, scores.detach(), digits, counts)
        return loss.item()

    def fit(self, steps):
        while True:
            for batch in self.loader:
                loss = self.train_step(batch)
                print(f"step {self.step} loss {loss:.6f} errors {self.report}")
                self.step += 1
                if self.step == steps:
                    return


def main():
    args = parse_args()
    logging.basicConfig(level=logging.INFO)
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)
    log.info("hidden size %d", args.hidden)
    Trainer(args).fit(args.steps)


if __name__ == "__main__":
    main()
