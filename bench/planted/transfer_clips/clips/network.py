"""Convolutions over space first, then over time."""

from torch import nn
from torch.nn import functional as F


class GestureNet(nn.Module):
    def __init__(self, config):
        super().__init__()
        width = config.width
        self.space = nn.Conv3d(3, width, (1, 7, 7), stride=(1, 4, 4), padding=(0, 3, 3))
        self.time = nn.Conv3d(width, 2 * width, (3, 1, 1), padding=(1, 0, 0))
        self.both = nn.Conv3d(2 * width, 4 * width, 3, stride=2, padding=1)
        self.head = nn.Linear(4 * width, config.gestures)

    def forward(self, clips):
        state = F.relu(self.time(F.relu(self.space(clips))))
        state = F.relu(self.both(state))
        return self.head(state.mean((2, 3, 4)))
