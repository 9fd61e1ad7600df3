"""A Gaussian process over the fixes of a track, as the prior of the latent paths."""

import math

import torch


class SmoothPaths:
    """Paths at fixed times: a Matern kernel with a little noise on its diagonal."""

    def __init__(self, times, scale=12.0, noise=0.05):
        distance = (times[:, None] - times[None, :]).abs() / scale
        kernel = (1 + math.sqrt(3) * distance) * torch.exp(-math.sqrt(3) * distance)
        self.covariance = kernel + noise * torch.eye(len(times))

    @property
    def factor(self):  # culprit: recompute
        return torch.linalg.cholesky(self.covariance)  # cost: recompute

    @property
    def log_determinant(self):
        return 2 * self.factor.diagonal().log().sum()

    def whiten(self, paths):
        """Paths as (batch, times, latents), made white by the factor of the kernel."""
        flat = paths.transpose(0, 1).flatten(1)
        return torch.linalg.solve_triangular(self.factor, flat, upper=False)

    def divergence(self, mean, log_variance):
        """From independent normals to this prior, per track."""
        batch, _, latents = mean.shape
        inverse = torch.cholesky_inverse(self.factor)
        trace = (inverse.diagonal()[None, :, None] * log_variance.exp()).sum()
        distance = self.whiten(mean).pow(2).sum()
        entropy = log_variance.sum() + mean[0, :, 0].numel() * latents * batch
        return 0.5 * (trace + distance - entropy + batch * latents * self.log_determinant) / batch
