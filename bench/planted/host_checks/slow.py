"""Classifies the papers of a citation network, all of them in every step.

The graph is checked before it goes through the layers, since a wrong edge once cost us a week.
"""

import argparse

import torch
from citations import make_graph
from torch import nn
from torch.nn import functional as F


def check_graph(sources, targets, papers):
    """Every citation goes both ways and connects papers that exist."""
    edges = list(zip(sources.tolist(), targets.tolist(), strict=True))
    known = set(edges)
    for source, target in edges:
        if not (0 <= source < papers and 0 <= target < papers):
            raise ValueError(f"{source} to {target}: there are {papers} papers")
        if (target, source) not in known:  # cost: host
            raise ValueError(f"{source} cites {target}, but not the other way round")


class GraphLayer(nn.Module):
    """The mean over the neighbours beside the node itself."""

    def __init__(self, width_in, width_out):
        super().__init__()
        self.own = nn.Linear(width_in, width_out)
        self.neighbours = nn.Linear(width_in, width_out, bias=False)

    def forward(self, features, sources, targets, degree):
        gathered = torch.zeros_like(features).index_add(0, targets, features[sources])
        return self.own(features) + self.neighbours(gathered / degree)


class CitationNetwork(nn.Module):
    def __init__(self, features, hidden, classes):
        super().__init__()
        self.layers = nn.ModuleList(
            [
                GraphLayer(features, hidden),
                GraphLayer(hidden, hidden),
                GraphLayer(hidden, classes),
            ]
        )

    def forward(self, graph):
        check_graph(graph.sources, graph.targets, len(graph.features))  # culprit: host
        state = graph.features
        for layer in self.layers[:-1]:
            state = F.relu(layer(state, graph.sources, graph.targets, graph.degree))
        return self.layers[-1](state, graph.sources, graph.targets, graph.degree)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--hidden", type=int, default=96)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(2)
    graph = make_graph(papers=4000, citations=36_000)
    model = CitationNetwork(graph.features.shape[1], args.hidden, graph.classes)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, fused=True)
    for step in range(args.steps):
        scores = model(graph)
        loss = F.cross_entropy(scores[graph.known], graph.fields[graph.known])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step} loss {loss.item():.6f}")


if __name__ == "__main__":
    main()
