"""Forecasts the traffic of a road network, snapshot by snapshot; the layer is in another module."""

import argparse

import torch
from graph import GraphLayer, make_links
from torch import nn
from torch.nn import functional as F

NODES, FEATURES = 2560, 32


class Forecaster(nn.Module):
    def __init__(self, links):
        super().__init__()
        self.first = GraphLayer(links, FEATURES, 32)
        self.last = nn.Linear(32, 1)

    def forward(self, nodes):
        return self.last(F.relu(self.first(nodes))).squeeze(-1)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100_000)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(2)
    model = Forecaster(make_links(NODES))
    snapshots, targets = torch.randn(8, NODES, FEATURES), torch.randn(8, NODES)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(args.steps):
        loss = F.mse_loss(model(snapshots[step % 8]), targets[step % 8])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step} loss {loss.item():.6f}")


if __name__ == "__main__":
    main()
