"""Encoder and decoder of tracks; every fix is coded with its neighbours in time."""

import torch
from torch import nn


class Coder(nn.Module):
    def __init__(self, inputs, outputs, width, window=5):
        super().__init__()
        self.window = window
        self.body = nn.Sequential(
            nn.Linear(inputs * window, width),
            nn.ReLU(),
            nn.Linear(width, width),
            nn.ReLU(),
            nn.Linear(width, outputs),
        )

    def forward(self, x):
        side = self.window // 2
        padded = nn.functional.pad(x, (0, 0, side, side))
        return self.body(padded.unfold(1, self.window, 1).flatten(2))


class TrackVAE(nn.Module):
    def __init__(self, prior, sensors=9, latents=4, width=112):
        super().__init__()
        self.prior = prior
        self.encoder = Coder(sensors, 2 * latents, width)
        self.decoder = Coder(latents, sensors, width)

    def forward(self, readings, weight):
        mean, log_variance = self.encoder(readings).chunk(2, dim=-1)
        log_variance = log_variance.clamp(-8, 4)
        path = mean + torch.randn_like(mean) * (0.5 * log_variance).exp()
        error = (self.decoder(path) - readings).pow(2).sum(dim=(1, 2)).mean()
        divergence = self.prior.divergence(mean, log_variance)
        return {"loss": (error + weight * divergence) / readings[0].numel(), "error": error}
