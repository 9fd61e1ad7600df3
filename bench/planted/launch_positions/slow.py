"""Trains a small transformer to complete sequences of moves, with learned relative positions.

python slow.py --depth 3
"""

import argparse
import logging
import math
from dataclasses import dataclass

import torch
from moves import MoveSequences
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

log = logging.getLogger("moves")


@dataclass
class Config:
    moves: int = 128
    length: int = 20
    width: int = 128
    heads: int = 4
    depth: int = 2
    reach: int = 8
    batch_size: int = 64
    workers: int = 1
    lr: float = 1e-3


class RelativeAttention(nn.Module):
    """Attention whose scores know how far apart two moves are, up to a reach."""

    def __init__(self, config):
        super().__init__()
        self.heads, self.reach = config.heads, config.reach
        self.qkv = nn.Linear(config.width, 3 * config.width)
        self.out = nn.Linear(config.width, config.width)
        self.near = nn.Parameter(0.1 * torch.randn(2 * config.reach + 1, config.heads))

    def bias(self, length):
        bias = torch.zeros(self.heads, length, length)
        for i in range(length):
            for j in range(i + 1):
                offset = max(-self.reach, min(self.reach, j - i))
                bias[:, i, j] = self.near[offset + self.reach]  # culprit: launch
        return bias

    def forward(self, states):
        batch, length, width = states.shape
        heads = self.qkv(states).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = heads.permute(2, 0, 3, 1, 4)
        scores = query @ key.transpose(-1, -2) / math.sqrt(width // self.heads)
        future = torch.ones(length, length, dtype=torch.bool).triu(1)
        scores = (scores + self.bias(length)).masked_fill(future, float("-inf"))
        mixed = scores.softmax(-1) @ value
        return self.out(mixed.transpose(1, 2).reshape(batch, length, width))


class Layer(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(config.width), nn.LayerNorm(config.width)
        self.attention = RelativeAttention(config)
        self.mlp = nn.Sequential(
            nn.Linear(config.width, 4 * config.width),
            nn.GELU(),
            nn.Linear(4 * config.width, config.width),
        )

    def forward(self, states):
        states = states + self.attention(self.norm1(states))
        return states + self.mlp(self.norm2(states))


class MoveModel(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.moves = nn.Embedding(config.moves, config.width)
        self.layers = nn.Sequential(*(Layer(config) for _ in range(config.depth)))
        self.norm = nn.LayerNorm(config.width)

    def forward(self, moves):
        return self.norm(self.layers(self.moves(moves))) @ self.moves.weight.T


def parameter_groups(model, weight_decay=0.05):
    """Matrices decay; biases, norms and the table of positions do not."""
    decayed, kept = [], []
    for name, parameter in model.named_parameters():
        matrix = parameter.ndim > 1 and not name.endswith("near")
        (decayed if matrix else kept).append(parameter)
    return [
        {"params": decayed, "weight_decay": weight_decay},
        {"params": kept, "weight_decay": 0.0},
    ]


def parse_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--depth", type=int, default=Config.depth)
    parser.add_argument("--lr", type=float, default=Config.lr)
    return parser.parse_args()


def main():
    args = parse_args()
    logging.basicConfig(level=logging.INFO)
    config = Config(depth=args.depth, lr=args.lr)
    torch.manual_seed(9)
    torch.set_num_threads(1)
    model = MoveModel(config)
    loader = DataLoader(
        MoveSequences(4096, config.length + 1, config.moves),
        batch_size=config.batch_size,
        num_workers=config.workers,
        drop_last=True,
        persistent_workers=True,
    )
    log.info("%d batches", len(loader))
    optimizer = torch.optim.AdamW(parameter_groups(model), lr=config.lr, fused=True)
    step = 0
    while step < args.steps:
        for sequence in loader:
            logits = model(sequence[:, :-1])
            loss = F.cross_entropy(logits.flatten(0, 1), sequence[:, 1:].flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(f"step {step} loss {loss.item():.6f}")
            step += 1
            if step == args.steps:
                break


if __name__ == "__main__":
    main()
