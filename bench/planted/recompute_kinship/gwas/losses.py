import math

import torch
from torch import nn


class MixedModelLoss(nn.Module):
    """Negative log likelihood of residuals that are correlated between relatives.

    The covariance is h2 * K + (1 - h2) * I with the kinship K of the cohort and a heritability h2
    that was estimated beforehand (REML). The residuals are whitened with its Cholesky factor.
    """

    def __init__(self, kinship, heritability):
        super().__init__()
        self.register_buffer("kinship", kinship)
        self.heritability = heritability

    def covariance_factor(self):
        h2 = self.heritability
        covariance = h2 * self.kinship
        covariance.diagonal().add_(1 - h2 + 1e-4)
        return torch.linalg.cholesky(covariance)  # cost: recompute

    def forward(self, predicted, traits):
        factor = self.covariance_factor()  # culprit: recompute
        white = torch.linalg.solve_triangular(factor, traits - predicted, upper=False)
        logdet = 2 * factor.diagonal().log().mean()
        return 0.5 * (white.square().mean() + logdet + math.log(2 * math.pi))


class SparsityPenalty(nn.Module):
    """Group lasso on the first layer: whole SNPs drop out."""

    def __init__(self, strength):
        super().__init__()
        self.strength = strength

    def forward(self, weight):
        return self.strength * weight.norm(dim=0).mean()
