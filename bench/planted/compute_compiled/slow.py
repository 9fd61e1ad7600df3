"""Fits a surrogate of an expensive simulation; what is elementwise in its layers is compiled.

The first step compiles; what is compiled is found again in the cache of the next run.
"""

import argparse
import logging
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F

log = logging.getLogger("surrogate")


@dataclass
class Config:
    inputs: int = 32
    outputs: int = 16
    width: int = 512
    batch_size: int = 512
    lr: float = 1e-3


@torch.compile(dynamic=False)
def join(hidden, change):
    """One pass over memory instead of five."""
    return hidden + 0.5 * torch.tanh(F.gelu(change) * 1.1 + 0.1)


class Surrogate(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.first = nn.Linear(config.inputs, config.width)
        self.layers = nn.ModuleList(nn.Linear(config.width, config.width) for _ in range(2))
        self.last = nn.Linear(config.width, config.outputs)

    def forward(self, settings):
        hidden = self.first(settings)
        for layer in self.layers:
            hidden = join(hidden, layer(hidden))
        return self.last(hidden)


def simulate(config, batches=8):
    settings = torch.rand(batches, config.batch_size, config.inputs)
    mixing = torch.randn(config.inputs, config.outputs)
    return settings, torch.sin(settings @ mixing)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--width", type=int, default=Config.width)
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO)
    config = Config(width=args.width)
    torch.manual_seed(0)
    torch.set_num_threads(2)
    settings, results = simulate(config)
    model = Surrogate(config)
    optimizer = torch.optim.Adam(model.parameters(), lr=config.lr, fused=True)
    log.info("%d parameters", sum(p.numel() for p in model.parameters()))
    for step in range(args.steps):
        loss = F.mse_loss(model(settings[step % 8]), results[step % 8])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step} loss {loss.item():.6f}")


if __name__ == "__main__":
    main()
