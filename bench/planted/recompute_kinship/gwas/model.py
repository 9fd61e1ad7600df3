import torch
from torch import nn


class PolygenicNet(nn.Module):
    """SNPs -> hidden -> traits, with a linear bypass (the classical polygenic score)."""

    def __init__(self, snps, hidden, traits, dropout):
        super().__init__()
        self.enter = nn.Linear(snps, hidden)
        self.body = nn.Sequential(nn.GELU(), nn.Dropout(dropout), nn.Linear(hidden, hidden), nn.GELU())
        self.leave = nn.Linear(hidden, traits)
        self.score = nn.Linear(snps, traits, bias=False)
        nn.init.zeros_(self.score.weight)

    def forward(self, genotypes):
        return self.leave(self.body(self.enter(genotypes))) + self.score(genotypes)


def explained(predicted: torch.Tensor, traits: torch.Tensor) -> torch.Tensor:
    """Mean share of the variance explained."""
    return 1 - ((traits - predicted).square().mean(0) / traits.var(0)).mean()
