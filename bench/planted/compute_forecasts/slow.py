"""Forecasts the load of a power grid with patches and a transformer, under Accelerate.

    python slow.py --validate-every 100 --save-every 100

Validates and saves a checkpoint once in a hundred steps.
"""

import argparse
import logging
import tempfile
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from grid import GridLoad, PatchForecaster
from torch.nn import functional as F
from torch.utils.data import DataLoader

log = logging.getLogger("grid")


def parse_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--width", type=int, default=96)
    parser.add_argument("--depth", type=int, default=2)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--validate-every", type=int, default=100)
    parser.add_argument("--save-every", type=int, default=100)
    parser.add_argument("--seed", type=int, default=31)
    return parser.parse_args()


@torch.no_grad()
def validate(model, loader):
    model.eval()
    losses = [F.l1_loss(model(past), future) for past, future in loader]
    model.train()
    return torch.stack(losses).mean().item()


def same_as_yesterday(loader):
    """The error of the simplest forecast there is: what was a day before."""
    errors = [F.l1_loss(past[:, -24:, 0], future) for past, future in loader]
    return torch.stack(errors).mean().item()


class Checkpoints:
    """The latest weights, and the best ones."""

    def __init__(self, folder):
        self.folder, self.best = folder, float("inf")

    def save(self, model, score):
        torch.save(model.state_dict(), self.folder / "latest.pt")
        if score < self.best:
            self.best = score
            torch.save(model.state_dict(), self.folder / "best.pt")


def train(args, folder):
    accelerator = Accelerator(cpu=True)
    torch.set_num_threads(1)
    training = DataLoader(
        GridLoad(20_000, seed=1),
        batch_size=args.batch_size,
        num_workers=1,
        persistent_workers=True,
        drop_last=True,
    )
    validation = DataLoader(GridLoad(256, seed=2), batch_size=64)
    model = PatchForecaster(args.width, args.depth)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, fused=True)
    model, optimizer, training, validation = accelerator.prepare(
        model, optimizer, training, validation
    )
    log.info("%d parameters", sum(p.numel() for p in model.parameters()))
    checkpoints = Checkpoints(folder)
    log.info("same as yesterday: %.4f", same_as_yesterday(validation))
    step, score = 0, float("inf")
    while True:
        for past, future in training:
            loss = F.l1_loss(model(past), future)
            optimizer.zero_grad()
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            step += 1
            if step % args.validate_every == 0:
                score = validate(model, validation)
                log.info("step %d: validation %.4f", step, score)
            if step % args.save_every == 0:
                checkpoints.save(accelerator.unwrap_model(model), score)
            print(f"step {step} loss {loss.item():.6f}")
            if step == args.steps:
                return


def main():
    args = parse_args()
    logging.basicConfig(level=logging.INFO)
    set_seed(args.seed)
    with tempfile.TemporaryDirectory() as scratch:
        train(args, Path(scratch))


if __name__ == "__main__":
    main()
