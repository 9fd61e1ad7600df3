"""Learns to recognise products from photographs by triplets; the settings are a dataclass.

The hard negatives are found by one comparison of all distances.
"""

import argparse
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F


@dataclass
class Config:
    steps: int = 100_000
    products: int = 48
    photographs: int = 2  # of each product in a batch
    size: int = 32
    channels: int = 16
    embedding: int = 64
    margin: float = 0.2
    lr: float = 0.002


class Encoder(nn.Module):
    def __init__(self, config):
        super().__init__()
        width = config.channels
        self.convolutions = nn.Sequential(
            nn.Conv2d(3, width, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(4),
        )
        self.project = nn.Linear(width * (config.size // 4) ** 2, config.embedding)

    def forward(self, images):
        return F.normalize(self.project(self.convolutions(images).flatten(1)), dim=1)


def find_triplets(distances, labels, margin):
    """Every (anchor, positive, negative) in which the negative is nearer than it should be."""
    labels = torch.tensor(labels)
    positives = torch.arange(len(labels)) ^ 1  # photographs of one product stand side by side
    limits = distances.gather(1, positives[:, None]) + margin
    anchor, other = ((distances < limits) & (labels != labels[:, None])).nonzero(as_tuple=True)
    return anchor, positives[anchor], other


def compute_loss(embeddings, labels, config):
    distances = torch.cdist(embeddings, embeddings)
    anchor, positive, negative = find_triplets(distances.detach(), labels, config.margin)
    gaps = distances[anchor, negative] - distances[anchor, positive]
    return F.relu(config.margin - gaps).sum() / len(labels)


def train(config):
    torch.manual_seed(0)
    torch.set_num_threads(2)
    labels = [
        photograph // config.photographs
        for photograph in range(config.products * config.photographs)
    ]
    batches = torch.randn(8, len(labels), 3, config.size, config.size)
    model = Encoder(config)
    optimizer = torch.optim.SGD(model.parameters(), lr=config.lr)
    for step in range(config.steps):
        loss = compute_loss(model(batches[step % len(batches)]), labels, config)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"{step}: triplet loss {loss.item():.6f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=Config.steps)
    train(Config(**vars(parser.parse_args())))
