"""Which characters are wrong, and which of its candidates was each meant to be?"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from bench.data import vocabulary


class DetectorHead(nn.Module):
    """One logit per place: is the character an error? Its loss wants logits, not probabilities."""

    def __init__(self, hidden: int, dropout: float) -> None:
        super().__init__()
        self.inner = nn.Linear(hidden, hidden)
        self.outer = nn.Linear(hidden, 1)
        self.dropout = nn.Dropout(dropout)

    def forward(self, hidden: Tensor) -> Tensor:
        """(B, L, H) to (B, L)"""
        x = self.dropout(hidden)
        x = torch.tanh(self.inner(x))
        x = self.dropout(x)
        logits: Tensor = self.outer(x)
        return logits.squeeze(-1)


class CandidateHead(nn.Module):
    """A probability for each candidate, from its embedding and the state of its place."""

    def __init__(self, hidden: int, dropout: float) -> None:
        super().__init__()
        self.query = nn.Linear(hidden, hidden)
        self.dropout = nn.Dropout(dropout)

    def forward(self, hidden: Tensor, candidate_ids: Tensor, embedding: nn.Module) -> Tensor:
        """(B, L, H) and (B, L, K) to (B, L, K); 0 for [PAD], so all 0 where nothing else is."""
        query = self.dropout(torch.tanh(self.query(hidden)))
        candidates = embedding(candidate_ids)
        scores = torch.matmul(candidates, query.unsqueeze(-1)).squeeze(-1).float()
        padding = candidate_ids == vocabulary.PAD
        # Not -inf: where all candidates are [PAD] the softmax would be NaN, and filling that with
        # 0 afterwards mends the value but not the gradient.
        scores = scores.masked_fill(padding, torch.finfo(scores.dtype).min)
        probs = torch.softmax(scores, dim=-1)
        return probs.masked_fill(padding, 0.0)
