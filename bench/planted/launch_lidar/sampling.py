"""Choosing and grouping points (PointNet++ style)."""

import torch


def _farthest(cloud, count):
    """Indices of `count` points of one (points, 3) cloud, each as far as possible from the others."""
    distance = cloud.new_full((len(cloud),), float("inf"))
    latest = torch.zeros(1, dtype=torch.long)
    chosen = [latest]
    for _ in range(count - 1):
        distance = torch.minimum(distance, (cloud - cloud[latest]).square().sum(-1))  # cost: launch
        latest = distance.argmax(0, keepdim=True)
        chosen.append(latest)
    return torch.cat(chosen)


@torch.no_grad()
def farthest_points(clouds, count):
    """(batch, points, 3) -> (batch, count) indices."""
    return torch.stack([_farthest(cloud, count) for cloud in clouds])  # culprit: launch


def take(values, index):
    """values (batch, points, features), index (batch, ...) -> (batch, ..., features)"""
    batch = torch.arange(len(values)).view(-1, *[1] * (index.dim() - 1))
    return values[batch, index]


@torch.no_grad()
def nearest(clouds, centres, count):
    return torch.cdist(centres, clouds).topk(count, largest=False).indices
