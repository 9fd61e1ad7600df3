"""A recurrent network that forecasts quantiles of the coming hours."""

from torch import nn


class TideNetwork(nn.Module):
    def __init__(self, settings):
        super().__init__()
        self.horizon, self.count = settings.horizon, len(settings.quantiles)
        self.mix = nn.Linear(settings.gauges, settings.hidden)
        self.gru = nn.GRU(settings.hidden, settings.hidden, settings.layers, batch_first=True)
        self.head = nn.Sequential(
            nn.Linear(settings.hidden, settings.hidden),
            nn.Tanh(),
            nn.Linear(settings.hidden, self.horizon * self.count),
        )

    def forward(self, window):
        states, _ = self.gru(self.mix(window).tanh())
        return self.head(states[:, -1]).unflatten(1, (self.horizon, self.count))
