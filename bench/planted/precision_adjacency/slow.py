"""Predicts how busy the stations of a bicycle hire will be, from the graph of their trips.

python slow.py --hidden 128
"""

import argparse
import logging

import torch
from stations import load_city
from torch import nn
from torch.nn import functional as F

log = logging.getLogger("bicycles")


class DiffusionLayer(nn.Module):
    """Mixes a station with those one and two trips away."""

    def __init__(self, width_in, width_out, hops=2):
        super().__init__()
        self.mix = nn.ModuleList(nn.Linear(width_in, width_out) for _ in range(hops + 1))

    def forward(self, state, transitions):
        total = self.mix[0](state)
        for layer in self.mix[1:]:
            state = transitions @ state
            total = total + layer(state)
        return F.relu(total)


class BicycleModel(nn.Module):
    def __init__(self, features, hidden):
        super().__init__()
        self.layers = nn.ModuleList(
            [DiffusionLayer(features, hidden), DiffusionLayer(hidden, hidden)]
        )
        self.head = nn.Linear(hidden, 1)

    def forward(self, features, transitions):
        state = features
        for layer in self.layers:
            state = layer(state, transitions)
        return self.head(state).squeeze(-1)


def train(city, hidden, steps):
    model = BicycleModel(city.features.shape[-1], hidden)
    model = model.to(city.transitions.dtype)
    log.info("%d stations, %s", len(city.transitions), city.transitions.dtype)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for step in range(steps):
        hour = step % len(city.features)
        predicted = model(city.features[hour], city.transitions)
        loss = F.huber_loss(predicted, city.busy[hour])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step} loss {loss.item():.6f}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--hidden", type=int, default=96)
    parser.add_argument("--stations", type=int, default=900)
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO)
    torch.manual_seed(0)
    torch.set_num_threads(2)
    train(load_city(args.stations), args.hidden, args.steps)


if __name__ == "__main__":
    main()
