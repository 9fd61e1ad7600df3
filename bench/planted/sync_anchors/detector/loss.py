"""The loss of a single-stage detector: which anchor answers for which box, and how well."""

import logging

import torch
from torch import nn
from torch.nn import functional as F

from detector.boxes import encode, overlap

log = logging.getLogger(__name__)

BACKGROUND = 0
IGNORED = -1


class Assigner:
    """Gives every anchor the class of the box it covers, the background, or nothing."""

    def __init__(self, anchors, positive=0.4, negative=0.25):
        self.anchors = anchors
        self.positive = positive
        self.negative = negative

    def __call__(self, boxes, classes):
        best, owner = overlap(self.anchors, boxes).max(dim=1)
        kinds = classes[owner]
        labels = []
        for index in range(len(self.anchors)):
            covered, kind = best[index].item(), kinds[index].item()  # culprit: sync
            if covered >= self.positive:
                labels.append(kind)
            elif covered < self.negative:
                labels.append(BACKGROUND)
            else:
                labels.append(IGNORED)
        return torch.tensor(labels), encode(self.anchors, boxes[owner])


class DetectionLoss(nn.Module):
    def __init__(self, anchors, box_weight=1.0):
        super().__init__()
        self.assign = Assigner(anchors)
        self.box_weight = box_weight

    def forward(self, scores, offsets, targets):
        assigned = [self.assign(boxes, classes) for boxes, classes in targets]
        labels = torch.stack([label for label, _ in assigned])
        wanted = torch.stack([offset for _, offset in assigned])
        positive = labels > BACKGROUND
        count = positive.sum().clamp(min=1)
        classification = F.cross_entropy(
            scores.flatten(0, 1), labels.flatten(), ignore_index=IGNORED, reduction="sum"
        )
        distance = F.smooth_l1_loss(offsets, wanted, reduction="none").sum(dim=-1)
        localisation = (distance * positive).sum()
        log.debug("%s anchors are positive", count)
        return (classification + self.box_weight * localisation) / (count * len(targets))
