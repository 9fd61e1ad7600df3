"""Restores mosaics with a transformer, under Accelerate."""

import argparse
import logging
import sys

import torch
from accelerate import Accelerator
from mosaics.data import LoseTiles, Mosaics
from mosaics.model import Restorer
from torch.nn import functional as F
from torch.utils.data import DataLoader

log = logging.getLogger("mosaics")


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--mosaics", type=int, default=2000)
    parser.add_argument("--tiles", type=int, default=64)
    parser.add_argument("--colours", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=14)
    parser.add_argument("--lr", type=float, default=0.02)
    parser.add_argument("--clip", type=float, default=1.0)
    parser.add_argument("--lost", type=float, default=0.3)
    parser.add_argument("--examine-every", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def show(tiles, wanted, scores, name):
    """One mosaic as text, lost tiles in brackets."""
    best = scores.argmax(dim=-1)
    text = []
    for tile, want, guess in zip(tiles.tolist(), wanted.tolist(), best.tolist(), strict=True):
        text.append(chr(97 + tile) if want == -100 else f"[{chr(97 + guess)}]")
    return f"{name} {''.join(text)}"


def hit_rate(accelerator, scores, wanted):
    lost = wanted != -100
    hits = (scores.argmax(dim=-1) == wanted) & lost
    hits, lost = accelerator.gather_for_metrics((hits.sum(), lost.sum()))
    return hits.sum().item() / max(1, lost.sum().item())


def main():
    args = parse_args()
    logging.basicConfig(stream=sys.stderr, level=logging.INFO)
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)
    accelerator = Accelerator(cpu=True)
    loader = DataLoader(
        Mosaics(args.mosaics, args.tiles, args.colours, args.seed),
        batch_size=args.batch_size,
        shuffle=True,
        drop_last=True,
        num_workers=0,
        collate_fn=LoseTiles(args.colours, args.lost, args.seed),
    )
    model = Restorer(args.tiles, args.colours)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1, (step + 1) / 200))
    model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)
    step = 0
    while step < args.steps:
        for batch in loader:
            with accelerator.accumulate(model):
                scores = model(batch["tiles"])
                loss = F.cross_entropy(scores.flatten(0, 1), batch["wanted"].flatten())
                accelerator.backward(loss)
                norm = accelerator.clip_grad_norm_(model.parameters(), args.clip)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
            hits = hit_rate(accelerator, scores.detach(), batch["wanted"])
            accelerator.print(
                f"step {step} loss {loss.item():.6f} hits {hits:.3f} norm {norm.item():.3f}"
            )
            if step % args.examine_every == 0:
                log.info(show(batch["tiles"][0], batch["wanted"][0], scores[0], batch["names"][0]))
                accelerator.wait_for_everyone()
            step += 1
            if step == args.steps:
                return


if __name__ == "__main__":
    main()
