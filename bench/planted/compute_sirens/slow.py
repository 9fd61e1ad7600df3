"""Tells the sirens of different vehicles apart, from spectrograms; grown over many nights."""

import argparse
import collections
import logging
import sys
import time

import torch
from nets import SirenNet
from schedule import WarmupCosine, split_parameters
from torch.nn import functional as F

logger = logging.getLogger("sirens")

CLASSES = ["ambulance", "fire", "police", "civil", "ship", "none"]


def get_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--batch_size", type=int, default=16)
    parser.add_argument("--accumulate", type=int, default=2)
    parser.add_argument("--frames", type=int, default=64)
    parser.add_argument("--bands", type=int, default=80)
    parser.add_argument("--clips", type=int, default=512)
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--weight_decay", type=float, default=1e-4)
    parser.add_argument("--log_every", type=int, default=25)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def make_clips(args):
    sounds = torch.randn(len(CLASSES), args.frames, args.bands)
    labels = torch.randint(len(CLASSES), (args.clips,))
    clips = sounds[labels] * 0.3 + torch.randn(args.clips, args.frames, args.bands)
    return clips, labels


def batches(clips, labels, size):
    """For ever: shuffle, then walk."""
    while True:
        order = torch.randperm(len(clips))
        for start in range(0, len(order) - size + 1, size):
            rows = order[start : start + size]
            yield clips[rows], labels[rows]


class Meters:
    """Running numbers, in plain Python."""

    def __init__(self):
        self.right = collections.defaultdict(int)
        self.seen = collections.defaultdict(int)
        self.losses = collections.deque(maxlen=100)
        self.started = time.time()

    def update(self, loss, scores, labels):
        self.losses.append(loss)
        best = scores.argmax(dim=1)
        for i in range(len(labels)):
            name = CLASSES[labels[i].item()]
            self.seen[name] += 1
            if best[i].item() == labels[i].item():
                self.right[name] += 1

    def report(self, step):
        logger.info("step %d, %.1f s since the start", step, time.time() - self.started)
        for name in CLASSES:
            share = self.right[name] / max(1, self.seen[name])
            logger.info("  %-10s %.3f of %d", name, share, self.seen[name])


def gradients_are_finite(model):
    for name, parameter in model.named_parameters():
        if name.endswith("head.weight") and not torch.isfinite(parameter.grad).all().item():
            logger.warning("gradient of %s is not finite", name)
            return False
    return True


def main():
    args = get_args()
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(message)s")
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)
    clips, labels = make_clips(args)
    source = batches(clips, labels, args.batch_size)
    model = SirenNet(args.bands, len(CLASSES))
    logger.info("%d parameters", sum(p.numel() for p in model.parameters()))
    groups = split_parameters(model, args.weight_decay)
    optimizer = torch.optim.SGD(groups, lr=args.lr, momentum=0.9)
    schedule = WarmupCosine(optimizer, warmup=100, total=5000)
    meters = Meters()
    for step in range(args.steps):
        model.train()
        optimizer.zero_grad()
        total = 0.0
        for _micro in range(args.accumulate):
            x, y = next(source)
            scores = model(x)
            loss = F.cross_entropy(scores, y) / args.accumulate
            loss.backward()
            total += loss.item()
            meters.update(loss.item() * args.accumulate, scores, y)
        if gradients_are_finite(model):
            optimizer.step()
        schedule.step()
        print(f"step {step} loss {total:.6f}")
        print(f"    lr {optimizer.param_groups[0]['lr']:.6f}")
        mean = sum(meters.losses) / len(meters.losses)
        print(f"    mean of the last {len(meters.losses)}: {mean:.4f}")
        if (step + 1) % args.log_every == 0:
            meters.report(step)


if __name__ == "__main__":
    main()
