"""Trains a decoder that captions pictures, and follows how much of a caption it gets right.

python slow.py --width 160
"""

import argparse
import logging
from dataclasses import dataclass

import torch
from scoring import Scoreboard
from torch import nn
from torch.nn import functional as F

log = logging.getLogger("captions")
PAD, END = 0, 1


@dataclass
class Options:
    vocabulary: int = 400
    length: int = 24
    regions: int = 16
    region_width: int = 128
    width: int = 96
    layers: int = 2
    batch_size: int = 48
    lr: float = 1e-3


class CaptionModel(nn.Module):
    def __init__(self, options):
        super().__init__()
        self.look = nn.Linear(options.region_width, options.width)
        self.words = nn.Embedding(options.vocabulary, options.width, padding_idx=PAD)
        self.places = nn.Parameter(torch.randn(options.length, options.width) * 0.02)
        layer = nn.TransformerDecoderLayer(
            options.width, 4, 4 * options.width, dropout=0.0, batch_first=True, norm_first=True
        )
        self.decoder = nn.TransformerDecoder(layer, options.layers)
        self.out = nn.Linear(options.width, options.vocabulary)
        mask = nn.Transformer.generate_square_subsequent_mask(options.length)
        self.register_buffer("mask", mask, persistent=False)

    def forward(self, regions, words):
        states = self.words(words) + self.places
        states = self.decoder(states, self.look(regions), tgt_mask=self.mask, tgt_is_causal=True)
        return self.out(states)


class Pictures:
    """Pictures as regions that a detector found, and captions that name what is in them."""

    def __init__(self, options, count=12):
        self.batches = []
        for _ in range(count):
            size = options.batch_size
            regions = torch.randn(size, options.regions, options.region_width)
            words = torch.randint(2, options.vocabulary, (size, options.length + 1))
            ends = torch.randint(options.length // 2, options.length + 1, (size, 1))
            places = torch.arange(options.length + 1)
            words = torch.where(places == ends, END, words)
            words = torch.where(places > ends, PAD, words)
            self.batches.append((regions, words[:, :-1], words[:, 1:]))

    def __iter__(self):
        while True:
            yield from self.batches


@torch.no_grad()
def caption(model, regions, options):
    """One picture's caption, a word at a time."""
    words = torch.full((1, options.length), PAD)
    words[0, 0] = END
    for place in range(options.length - 1):
        scores = model(regions.unsqueeze(0), words)
        words[0, place + 1] = scores[0, place].argmax()
        if words[0, place + 1] == END:
            break
    return words[0, 1:].tolist()


def train(options, steps):
    model = CaptionModel(options)
    log.info("%d parameters", sum(p.numel() for p in model.parameters()))
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.lr, fused=True)
    board = Scoreboard(PAD, END)
    pictures = zip(range(steps), Pictures(options), strict=False)
    for step, (regions, words, following) in pictures:
        scores = model(regions, words)
        loss = F.cross_entropy(scores.flatten(0, 1), following.flatten(), ignore_index=PAD)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        board.add(scores.detach().argmax(-1), following)
        print(f"step {step} loss {loss.item():.6f} {board}")
    log.info("a caption: %s", caption(model, regions[0], options))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--width", type=int, default=Options.width)
    parser.add_argument("--layers", type=int, default=Options.layers)
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO)
    torch.manual_seed(0)
    torch.set_num_threads(2)
    train(Options(width=args.width, layers=args.layers), args.steps)


if __name__ == "__main__":
    main()
