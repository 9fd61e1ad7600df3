"""Boxes as corners (left, top, right, bottom), and what a detector needs to know of them."""

import torch


def make_anchors(size, stride, edges):
    """Square anchors of several edges around the centre of every cell."""
    centres = torch.arange(stride / 2, size, stride)
    rows, columns = torch.meshgrid(centres, centres, indexing="ij")
    middle = torch.stack([columns, rows], dim=-1).view(-1, 1, 2)
    half = torch.tensor(edges, dtype=torch.float32).view(1, -1, 1) / 2
    return torch.cat([middle - half, middle + half], dim=-1).view(-1, 4)


def area(boxes):
    return (boxes[..., 2] - boxes[..., 0]) * (boxes[..., 3] - boxes[..., 1])


def overlap(first, second):
    """Intersection over union of every box of `first` with every box of `second`."""
    low = torch.maximum(first[:, None, :2], second[None, :, :2])
    high = torch.minimum(first[:, None, 2:], second[None, :, 2:])
    shared = (high - low).clamp(min=0).prod(dim=-1)
    return shared / (area(first)[:, None] + area(second)[None] - shared)


def encode(anchors, boxes):
    """Offsets that turn the anchors into the boxes."""
    edge = anchors[:, 2:] - anchors[:, :2]
    middle = (anchors[:, 2:] + anchors[:, :2]) / 2
    wanted = boxes[:, 2:] - boxes[:, :2]
    shift = ((boxes[:, 2:] + boxes[:, :2]) / 2 - middle) / edge
    return torch.cat([shift, torch.log(wanted / edge)], dim=1)
