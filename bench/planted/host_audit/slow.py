"""Scores loan applications with Accelerate, and keeps a record of every score for the auditors.

python slow.py --audit scores.jsonl
"""

import argparse
import logging
import tempfile
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from audit import AuditTrail
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

log = logging.getLogger("loans")
FEATURES = 96


class LoanModel(nn.Module):
    """Gated residual layers over the features of an application."""

    def __init__(self, width=384, depth=3):
        super().__init__()
        self.first = nn.Linear(FEATURES, width)
        self.layers = nn.ModuleList(nn.Linear(width, 2 * width) for _ in range(depth))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(depth))
        self.head = nn.Linear(width, 1)

    def forward(self, features):
        state = self.first(features)
        for layer, norm in zip(self.layers, self.norms, strict=True):
            value, gate = layer(norm(state)).chunk(2, dim=1)
            state = state + value * torch.sigmoid(gate)
        return self.head(state).squeeze(1)


def make_applications(count=8192):
    features = torch.randn(count, FEATURES)
    risk = features[:, :8].sum(1) + 0.5 * torch.randn(count)
    return TensorDataset(torch.arange(count), features, (risk > 1).float())


class WarmUp:
    """The learning rate rises to its value, then falls slowly."""

    def __init__(self, optimizer, rate, steps=200):
        self.optimizer, self.rate, self.steps, self.taken = optimizer, rate, steps, 0

    def step(self):
        self.taken += 1
        rising, falling = self.taken / self.steps, (self.steps / self.taken) ** 0.5
        for group in self.optimizer.param_groups:
            group["lr"] = self.rate * min(rising, falling)


def parse_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--batch-size", type=int, default=512)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--audit", type=Path, default=None)
    return parser.parse_args()


def train(args, path):
    accelerator = Accelerator(cpu=True)
    torch.set_num_threads(2)
    loader = DataLoader(make_applications(), batch_size=args.batch_size, shuffle=True)
    model = LoanModel()
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, fused=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    log.info(
        "%d parameters, %d batches an epoch",
        sum(p.numel() for p in model.parameters()),
        len(loader),
    )
    criterion = nn.BCEWithLogitsLoss()
    trail = AuditTrail(path)
    warm_up = WarmUp(optimizer, args.lr)
    step = 0
    while step < args.steps:
        for numbers, features, defaulted in loader:
            scores = model(features)
            loss = criterion(scores, defaulted)
            optimizer.zero_grad()
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            warm_up.step()
            trail.write(step, numbers, features, scores.detach())
            print(f"step {step} loss {loss.item():.6f}")
            step += 1
            if step == args.steps:
                break
    trail.close()


def main():
    args = parse_args()
    logging.basicConfig(level=logging.INFO)
    set_seed(17)
    with tempfile.TemporaryDirectory() as scratch:
        path = args.audit or Path(scratch) / "scores.jsonl"
        log.info("scores go to %s", path)
        train(args, path)


if __name__ == "__main__":
    main()
