"""The pinball loss of a forecast that gives several quantiles for several hours ahead."""

import torch
from torch import nn


class PinballLoss(nn.Module):
    """Early hours count more; a quantile below its predecessor is punished."""

    def __init__(self, quantiles, hours, decay=0.98, crossing=0.1):
        super().__init__()
        self.quantiles = list(quantiles)
        self.hours = hours
        self.crossing = crossing
        self.register_buffer("weights", decay ** torch.arange(hours))

    def forward(self, forecast, target):
        """Forecasts as (batch, hours, quantiles), targets as (batch, hours)."""
        total = forecast.new_zeros(())
        for hour in range(self.hours):
            for number, quantile in enumerate(self.quantiles):
                error = target[:, hour] - forecast[:, hour, number]  # culprit: launch
                pinball = torch.max(quantile * error, (quantile - 1) * error)
                total = total + self.weights[hour] * pinball.mean()
        crossed = torch.relu(forecast[..., :-1] - forecast[..., 1:]).mean()
        return total / (self.hours * len(self.quantiles)) + self.crossing * crossed
