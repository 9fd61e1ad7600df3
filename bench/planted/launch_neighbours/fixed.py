"""Classifies the papers of a citation graph, in plain functions.

The neighbours of all papers are added up in one operation.
"""

import argparse
import math

import torch
from torch.nn import functional as F

PAPERS, WORDS, HIDDEN, TOPICS, CITATIONS = 384, 4096, 512, 7, 6


def make_graph():
    neighbours = [torch.randint(PAPERS, (CITATIONS + paper % 5,)) for paper in range(PAPERS)]
    counts = torch.tensor([len(ids) for ids in neighbours])
    return torch.cat(neighbours), torch.arange(PAPERS).repeat_interleave(counts), counts


def make_parameters():
    sizes = [(WORDS, HIDDEN), (2 * HIDDEN, TOPICS)]
    weights = [torch.randn(size) / math.sqrt(size[0]) for size in sizes]
    return [weight.requires_grad_() for weight in weights]


def gather_neighbours(features, neighbours):
    sources, targets, counts = neighbours
    sums = torch.zeros_like(features).index_add(0, targets, features[sources])
    return sums / counts[:, None]


def predict(parameters, words, neighbours):
    encode, classify = parameters
    papers = torch.relu(words @ encode)
    return torch.cat([papers, gather_neighbours(papers, neighbours)], dim=1) @ classify


def train(steps):
    neighbours = make_graph()
    words = torch.randn(PAPERS, WORDS)
    topics = torch.randint(TOPICS, (PAPERS,))
    parameters = make_parameters()
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    for step in range(steps):
        loss = F.cross_entropy(predict(parameters, words, neighbours), topics)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"[{step}] nll={loss.item():.6f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100_000)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(2)
    train(args.steps)
