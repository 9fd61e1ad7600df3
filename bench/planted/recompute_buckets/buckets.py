"""A bias for each bucket of distances: near ones are told apart exactly, far ones roughly."""

import math

import torch
from torch import nn

BUCKETS, FURTHEST = 32, 128


class BucketBias(nn.Module):
    def __init__(self, heads):
        super().__init__()
        self.table = nn.Embedding(BUCKETS, heads)

    @staticmethod
    def bucket(distance):
        half = BUCKETS // 2
        side = (distance > 0).long() * half
        distance = distance.abs()
        exact = half // 2
        far = torch.log(distance.float().clamp(min=1) / exact) / math.log(FURTHEST / exact)
        far = (exact + (far * (half - exact)).long()).clamp(max=half - 1)
        return side + torch.where(distance < exact, distance, far)

    def forward(self, length):
        places = torch.arange(length)
        buckets = self.bucket(places - places.unsqueeze(1))
        return self.table(buckets).permute(2, 0, 1).contiguous()
