"""Federated training of a deep network on the records of a few hospitals, one after the other."""

import argparse
import logging

import torch
from federated.client import Client
from federated.server import Server
from torch import nn

HOSPITALS = ("Aachen", "Bergen", "Coimbra")
FEATURES = 64
DIAGNOSES = 8


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.inner = nn.Linear(width, width)
        self.outer = nn.Linear(width, width)

    def forward(self, rows):
        return rows + self.outer(torch.relu(self.inner(self.norm(rows))))


class Diagnosis(nn.Module):
    def __init__(self, width, depth):
        super().__init__()
        self.inputs = nn.Linear(FEATURES, width)
        self.blocks = nn.Sequential(*(Block(width) for _ in range(depth)))
        self.outputs = nn.Linear(width, DIAGNOSES)

    def forward(self, rows):
        return self.outputs(self.blocks(self.inputs(rows)))


def make_client(number, name, args):
    """Every hospital sees other patients: the records are shifted from one to the next."""
    generator = torch.Generator().manual_seed(number)
    labels = torch.randint(DIAGNOSES, (2000,), generator=generator)
    centres = torch.randn(DIAGNOSES, FEATURES, generator=torch.Generator().manual_seed(99))
    rows = centres[labels] + 2 * torch.randn(2000, FEATURES, generator=generator) + 0.2 * number
    return Client(name, rows, labels, args)


def parse():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--local-steps", type=int, default=50)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--depth", type=int, default=40)
    parser.add_argument("--learning-rate", type=float, default=0.002)
    parser.add_argument("--momentum", type=float, default=0.9)
    parser.add_argument("--proximal", type=float, default=0.01)
    parser.add_argument("--weight-decay", type=float, default=1e-4)
    return parser.parse_args()


def main():
    args = parse()
    logging.basicConfig(level=logging.INFO)
    torch.manual_seed(0)
    torch.set_num_threads(1)
    clients = [make_client(number, name, args) for number, name in enumerate(HOSPITALS)]
    server = Server(Diagnosis(args.width, args.depth), clients, args.local_steps)
    server.train(args.steps)


if __name__ == "__main__":
    main()
