"""Whom to believe, the vocabulary or the candidates? A gate, and three ways to mix what they say.

They give the same result only if no candidate but [PAD] occurs twice at a place: `scatter_`
keeps one of the duplicates, the other two sum them.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

EPSILON = 1e-10  # keeps the logarithm finite


class GatedFusion(nn.Module):
    """The share of the candidates at each place, from its state and the detector's opinion."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.gate = nn.Linear(hidden + 1, 1)
        nn.init.zeros_(self.gate.bias)

    def forward(self, hidden: Tensor, detect_logits: Tensor) -> Tensor:
        """(B, L, H) and (B, L) to (B, L, 1)"""
        detected = torch.sigmoid(detect_logits).unsqueeze(-1)
        alpha: Tensor = self.gate(torch.cat([hidden, detected], dim=-1))
        return torch.sigmoid(alpha)


def fuse_with_zeros(
    logits: Tensor, candidate_ids: Tensor, candidate_probs: Tensor, alpha: Tensor
) -> Tensor:
    """As the job was first written: the candidates spread over a vocabulary of zeros."""
    probs = torch.softmax(logits, dim=-1, dtype=torch.float32)
    spread = torch.zeros(probs.shape, dtype=probs.dtype, device=probs.device)
    spread.scatter_(-1, candidate_ids, candidate_probs)
    fused = (1 - alpha) * probs + alpha * spread
    return torch.log(fused + EPSILON)


def fuse_in_place(
    logits: Tensor, candidate_ids: Tensor, candidate_probs: Tensor, alpha: Tensor
) -> Tensor:
    """The candidates added where they belong, without a second tensor of vocabulary size."""
    fused = (1 - alpha) * torch.softmax(logits, dim=-1, dtype=torch.float32)
    fused.scatter_add_(-1, candidate_ids, alpha * candidate_probs)
    return torch.log(fused + EPSILON)


def fuse_labels(
    logits: Tensor, candidate_ids: Tensor, candidate_probs: Tensor, alpha: Tensor, labels: Tensor
) -> Tensor:
    """What the labels get, (N, V) to (N): a loss needs no mixture of the other characters."""
    plain = torch.exp(-F.cross_entropy(logits.float(), labels, reduction="none"))
    listed = (candidate_probs * (candidate_ids == labels.unsqueeze(-1))).sum(-1)
    share = alpha.squeeze(-1)
    return torch.log((1 - share) * plain + share * listed + EPSILON)
