"""Learns chorales note by note with an LSTM whose state is carried along.

    python slow.py --hidden 192

Every fifty steps the gradients are looked at and a few notes are composed.
"""

import argparse
import logging
from dataclasses import dataclass

import torch
from chorales import Chorale, NoteModel
from torch import nn
from torch.nn import functional as F

log = logging.getLogger("chorales")


@dataclass
class Config:
    notes: int = 96
    hidden: int = 192
    layers: int = 2
    length: int = 48
    streams: int = 32
    lr: float = 2e-3
    look_every: int = 50
    composed: int = 6


def batches(chorale, length):
    """Pieces that follow each other, so that the state of one is the beginning of the next."""
    while True:
        for begin in range(0, chorale.notes.shape[1] - length - 1, length):
            piece = chorale.notes[:, begin : begin + length + 1]
            yield piece[:, :-1], piece[:, 1:]


@torch.no_grad()
def compose(model, count):
    """A few notes, each the likeliest after the ones before."""
    note, state, notes = torch.zeros(1, 1, dtype=torch.long), None, []
    for _ in range(count):
        logits, state = model(note, state)
        note = logits[:, -1:].argmax(-1)
        notes.append(note.item())
    return notes


def look(model, config):
    norms = [p.grad.norm().item() for p in model.parameters()]
    log.info("largest gradient %.4f, composed %s", max(norms), compose(model, config.composed))


def train(config, steps):
    chorale = Chorale(config.streams, config.notes)
    model = NoteModel(config)
    optimizer = torch.optim.Adam(model.parameters(), lr=config.lr)
    state = None
    pieces = zip(range(steps), batches(chorale, config.length), strict=False)
    for step, (notes, following) in pieces:
        logits, state = model(notes, state)
        loss = F.cross_entropy(logits.flatten(0, 1), following.flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        state = tuple(part.detach() for part in state)
        if step % config.look_every == 0:
            look(model, config)
        print(f"step {step} loss {loss.item():.6f}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--hidden", type=int, default=Config.hidden)
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO)
    torch.manual_seed(0)
    torch.set_num_threads(2)
    train(Config(hidden=args.hidden), args.steps)


if __name__ == "__main__":
    main()
