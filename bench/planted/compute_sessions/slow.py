"""Next click in a web shop (SASRec with a full softmax)."""

import argparse
import os
from collections import defaultdict

import torch
from sessions.sasrec import SASRec
from sessions.shop import PAD, loader
from torch.nn import functional as F


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--visits", type=int, default=20_000)
    parser.add_argument("--articles", type=int, default=1500)
    parser.add_argument("--longest", type=int, default=32)
    parser.add_argument("--batch", type=int, default=48)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--steps", type=int, default=int(os.environ.get("STEPS", 20_000)))
    parser.add_argument("--seed", type=int, default=4)
    return parser.parse_args()


class Meter:
    """Averages by name, since the last report."""

    def __init__(self):
        self.sums, self.counts = defaultdict(float), defaultdict(int)

    def add(self, **values):
        for name, value in values.items():
            self.sums[name] += value.item() if torch.is_tensor(value) else value
            self.counts[name] += 1

    def text(self):
        return " ".join(f"{name} {self.sums[name] / self.counts[name]:.6f}" for name in self.sums)

    def clear(self):
        self.sums.clear()
        self.counts.clear()


def gradient_norms(model):
    return {name: p.grad.norm() for name, p in model.named_parameters() if p.grad is not None}


def main():
    args = arguments()
    torch.manual_seed(args.seed)
    model = SASRec(args.articles, args.longest)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.01)
    meter, step, batches = Meter(), 0, loader(args)
    while step < args.steps:
        for clicked, following in batches:
            scores = model(clicked)
            loss = F.cross_entropy(scores.flatten(0, 1), following.flatten(), ignore_index=PAD)
            optimizer.zero_grad()
            loss.backward()
            norms = gradient_norms(model)
            optimizer.step()
            # where does the gradient explode, if it does?
            meter.add(loss=loss, largest=max(norms.values()))
            print(f"step {step} {meter.text()} ({max(norms, key=norms.get)})")
            meter.clear()
            step += 1
            if step == args.steps:
                break


if __name__ == "__main__":
    main()
