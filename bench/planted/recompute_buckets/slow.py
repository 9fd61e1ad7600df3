"""Trains an encoder on readings of a wind turbine, with positions in buckets as T5 has them."""

import argparse
from dataclasses import dataclass

import torch
from buckets import BucketBias
from torch import nn
from torch.nn import functional as F


@dataclass
class Config:
    sensors: int = 24
    length: int = 192
    width: int = 48
    heads: int = 4
    depth: int = 6
    batch_size: int = 4
    lr: float = 1e-3


class Attention(nn.Module):
    def __init__(self, config, bias):
        super().__init__()
        self.heads = config.heads
        self.bias = bias
        self.qkv = nn.Linear(config.width, 3 * config.width)
        self.out = nn.Linear(config.width, config.width)

    def forward(self, states):
        batch, length, width = states.shape
        parts = self.qkv(states).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        bias = self.bias(length)  # culprit: recompute
        mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=bias)
        return self.out(mixed.transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self, config, bias):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(config.width), nn.LayerNorm(config.width)
        self.attention = Attention(config, bias)
        self.mlp = nn.Sequential(
            nn.Linear(config.width, 4 * config.width),
            nn.GELU(),
            nn.Linear(4 * config.width, config.width),
        )

    def forward(self, states):
        states = states + self.attention(self.norm1(states))
        return states + self.mlp(self.norm2(states))


class TurbineModel(nn.Module):
    """All blocks share one table of biases."""

    def __init__(self, config):
        super().__init__()
        self.bias = BucketBias(config.heads)
        self.first = nn.Linear(config.sensors, config.width)
        self.blocks = nn.ModuleList(Block(config, self.bias) for _ in range(config.depth))
        self.last = nn.Linear(config.width, config.sensors)

    def forward(self, readings):
        states = self.first(readings)
        for block in self.blocks:
            states = block(states)
        return self.last(states)


def make_readings(config, count=10):
    noise = torch.randn(count, config.batch_size, config.length, config.sensors)
    return noise.cumsum(2) / 10


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--depth", type=int, default=Config.depth)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(2)
    config = Config(depth=args.depth)
    readings = make_readings(config)
    model = TurbineModel(config)
    optimizer = torch.optim.Adam(model.parameters(), lr=config.lr, fused=True)
    for step in range(args.steps):
        batch = readings[step % len(readings)]
        hidden = (torch.arange(config.length) % 5 == step % 5).unsqueeze(1)
        loss = F.smooth_l1_loss(model(batch.masked_fill(hidden, 0.0)), batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step} loss {loss.item():.6f}")


if __name__ == "__main__":
    main()
