"""Papers that cite each other, mostly within their field."""

from dataclasses import dataclass

import torch


@dataclass
class Graph:
    features: torch.Tensor
    sources: torch.Tensor
    targets: torch.Tensor
    degree: torch.Tensor
    fields: torch.Tensor
    known: torch.Tensor
    classes: int


def make_graph(papers, citations, classes=7, width=96):
    fields = torch.randint(classes, (papers,))
    features = torch.randn(papers, width) + 0.05 * fields.unsqueeze(1)
    sources, targets = torch.randint(papers, (2, citations))
    both = torch.cat([sources, targets]), torch.cat([targets, sources])
    degree = torch.bincount(both[1], minlength=papers).clamp(min=1).unsqueeze(1).float()
    return Graph(features, *both, degree, fields, torch.rand(papers) < 0.3, classes)
