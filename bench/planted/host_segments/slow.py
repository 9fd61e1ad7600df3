"""Trains a model of clicks on advertisements; a monitor watches the segments of the audience.

The monitor looks at every batch.
"""

import argparse

import torch
from clicks.model import ClickModel
from clicks.monitor import SegmentMonitor
from torch.nn import functional as F


def make_batches(count, size):
    for _ in range(count):
        numbers = torch.randn(size, 64)
        yield torch.randint(1000, (size, 8)), numbers, (numbers[:, 0] > 1).float()


def run(steps):
    batches = list(make_batches(8, 1280))
    model = ClickModel()
    monitor = SegmentMonitor()
    opt = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(steps):
        categories, numbers, clicked = batches[step % len(batches)]
        logits = model(categories, numbers)
        loss = F.binary_cross_entropy_with_logits(logits, clicked)
        opt.zero_grad()
        loss.backward()
        opt.step()
        monitor.update(step, categories, logits.detach(), clicked)
        print(f"step {step} loss {loss.item():.6f} worst segment: {monitor.worst}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100_000)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(2)
    run(args.steps)
