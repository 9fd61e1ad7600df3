"""Forecasts the tide at a harbour from three days of readings of twelve gauges.

python slow.py --hidden 96
"""

import argparse
import logging

import torch
from tides.gauges import GaugeWindows, read_gauges
from tides.network import TideNetwork
from tides.settings import Settings
from torch.utils.data import DataLoader

log = logging.getLogger(__name__)


def pinball(predicted, measured, quantiles):
    """The loss of a forecast of quantiles."""
    error = measured.unsqueeze(-1) - predicted
    return torch.maximum(quantiles * error, (quantiles - 1) * error).mean()


class Skill:
    """How much better than saying that the tide stays as it is? One is perfect, zero no better."""

    def __init__(self, momentum=0.99):
        self.momentum, self.model, self.naive = momentum, 1.0, 1.0

    def update(self, predicted, window, measured):
        error = (predicted[..., 1] - measured).abs().mean().item()
        stays = (window[:, -1:, 0] - measured).abs().mean().item()
        self.model = self.momentum * self.model + (1 - self.momentum) * error
        self.naive = self.momentum * self.naive + (1 - self.momentum) * stays
        return 1 - self.model / self.naive


def train(settings, steps):
    table = read_gauges(settings)
    windows = GaugeWindows(table, settings)
    loader = DataLoader(windows, batch_size=settings.batch_size, num_workers=settings.workers)
    quantiles = torch.tensor(settings.quantiles)
    model = TideNetwork(settings)
    optimizer = torch.optim.RMSprop(model.parameters(), lr=settings.lr)
    skill = Skill()
    batches = iter(loader)
    for step in range(steps):
        window, target = next(batches)
        predicted = model(window)
        loss = pinball(predicted, target, quantiles)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_value_(model.parameters(), 0.5)
        optimizer.step()
        if step % 100 == 0:
            log.info("step %d: skill %.3f", step, skill.update(predicted, window, target))
        print(f"step {step} pinball loss {loss.item():.6f}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--hidden", type=int, default=Settings.hidden)
    parser.add_argument("--batch-size", type=int, default=Settings.batch_size)
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO)
    settings = Settings(hidden=args.hidden, batch_size=args.batch_size)
    torch.manual_seed(settings.seed)
    torch.set_num_threads(1)
    train(settings, args.steps)


if __name__ == "__main__":
    main()
