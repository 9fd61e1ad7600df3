"""Convolutions over the bands, a recurrent layer over time."""

from torch import nn
from torch.nn import functional as F

from speech.sounds import BANDS, DIGITS


class Recogniser(nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.front = nn.Conv1d(BANDS, hidden, 5, padding=2)
        self.rnn = nn.GRU(hidden, hidden, num_layers=1, batch_first=True, bidirectional=True)
        self.head = nn.Linear(2 * hidden, DIGITS + 1)

    def forward(self, sounds):
        features = F.relu(self.front(sounds.transpose(1, 2))).transpose(1, 2)
        states, _ = self.rnn(features)
        return F.log_softmax(self.head(states), dim=-1)
