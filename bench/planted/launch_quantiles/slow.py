"""Forecasts the electric load of districts for the next hours, as quantiles."""

import argparse
import math

import torch
from load.losses import PinballLoss
from load.model import LoadForecaster
from torch.utils.data import DataLoader, Dataset

QUANTILES = (0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95)


class Districts(Dataset):
    """Windows over the hourly load of some districts, with the weather beside it."""

    def __init__(self, districts, length, history, hours, weather, seed):
        generator = torch.Generator().manual_seed(seed)
        hour = torch.arange(length)
        daily = torch.sin(2 * math.pi * hour / 24) + 0.4 * torch.sin(2 * math.pi * hour / 168)
        level = 1 + torch.rand(districts, 1, generator=generator)
        noise = torch.randn(districts, length, generator=generator)
        load = level * daily + 0.2 * noise
        weather = torch.randn(districts, length, weather, generator=generator)
        self.load, self.known = load, torch.cat([load[..., None], weather], dim=-1)
        self.past, self.ahead = torch.arange(history), history + torch.arange(hours)
        self.windows = length - history - hours

    def __len__(self):
        return len(self.load) * self.windows

    def __getitems__(self, indices):
        indices = torch.tensor(indices)[:, None]
        district, start = indices // self.windows, indices % self.windows
        return self.known[district, start + self.past], self.load[district, start + self.ahead]


def as_drawn(batch):
    """The windows of a batch are cut out together, so there is nothing left to collate."""
    return batch


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--districts", type=int, default=8)
    parser.add_argument("--length", type=int, default=4000)
    parser.add_argument("--history", type=int, default=48)
    parser.add_argument("--hours", type=int, default=24)
    parser.add_argument("--weather", type=int, default=7)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--lr", type=float, default=0.02)
    return parser.parse_args()


def main():
    args = parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    data = Districts(args.districts, args.length, args.history, args.hours, args.weather, seed=1)
    loader = DataLoader(
        data, batch_size=args.batch_size, shuffle=True, drop_last=True, collate_fn=as_drawn
    )
    model = LoadForecaster(1 + args.weather, args.hours, len(QUANTILES))
    criterion = PinballLoss(QUANTILES, args.hours)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    step = 0
    while step < args.steps:
        for history, target in loader:
            forecast = model(history)
            loss = criterion(forecast, target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            with torch.no_grad():
                inside = (target > forecast[..., 0]) & (target < forecast[..., -1])
            print(f"step {step} loss {loss.item():.6f} inside {inside.float().mean():.3f}")
            step += 1
            if step == args.steps:
                return


if __name__ == "__main__":
    main()
