"""Convolutions over the spectrogram."""

from torch import nn
from torch.nn import functional as F


class WhaleNet(nn.Module):
    def __init__(self, config):
        super().__init__()
        width = config.width
        self.first = nn.Conv2d(1, width, 5, stride=2, padding=2)
        self.second = nn.Conv2d(width, 2 * width, 3, padding=1)
        self.third = nn.Conv2d(2 * width, 2 * width, 3, stride=2, padding=1)
        self.head = nn.Linear(2 * width, 1)

    def forward(self, spectrograms):
        state = F.relu(self.first(spectrograms))
        state = F.relu(self.second(state))
        state = F.relu(self.third(state))
        return self.head(state.amax((2, 3))).squeeze(1)
