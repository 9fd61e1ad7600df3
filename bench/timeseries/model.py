"""What is trained? An LSTM whose days are weighed by attention before they become a number.

The recurrence has two forms with the same weights and the same result: the fused kernel of
nn.LSTM, and a Python loop that asks the device for every gate of every day.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bench.timeseries.settings import Settings


class AttentionRegressor(nn.Module):
    """(batch, days, features) -> (batch,)."""

    def __init__(
        self, features: int, hidden: int, layers: int, dropout: float, *, fused: bool = True
    ) -> None:
        super().__init__()
        self.lstm = nn.LSTM(
            features,
            hidden,
            layers,
            batch_first=True,
            # One layer has no layer after it, and torch warns about a dropout without effect.
            dropout=dropout if layers > 1 else 0.0,
        )
        self.attention = nn.Linear(hidden, 1)
        self.head = nn.Linear(hidden, 1)
        self.fused = fused

    def forward(self, days: Tensor) -> Tensor:
        return self.attend(days)[0]

    def attend(self, days: Tensor) -> tuple[Tensor, Tensor]:
        """The predictions, and the weights of the days (batch, days), which sum to 1 per window."""
        return self.weigh(self.recur(days))

    def recur(self, days: Tensor) -> Tensor:
        """The state of the last layer on each day (batch, days, hidden)."""
        if self.fused:
            states: Tensor = self.lstm(days)[0]
            return states
        return loop_over_cells(self.lstm, days)

    def weigh(self, states: Tensor) -> tuple[Tensor, Tensor]:
        # A function of its own: torch.compile gives up on every function that touches an LSTM,
        # and this one can still be compiled.
        weights = self.attention(states).softmax(dim=1)
        summary = (weights * states).sum(dim=1)
        return self.head(summary).squeeze(-1), weights.squeeze(-1)


def build_model(settings: Settings, features: int) -> AttentionRegressor:
    return AttentionRegressor(
        features,
        settings.hidden,
        settings.layers,
        settings.dropout,
        fused=settings.fused_lstm,
    )


def loop_over_cells(lstm: nn.LSTM, days: Tensor) -> Tensor:
    """What nn.LSTM computes, one cell after the other."""
    states = days
    for layer in range(lstm.num_layers):
        if layer > 0:
            states = F.dropout(states, lstm.dropout, lstm.training)
        states = _loop_over_days(lstm, layer, states)
    return states


def _loop_over_days(lstm: nn.LSTM, layer: int, inputs: Tensor) -> Tensor:
    input_weight, state_weight = (getattr(lstm, f"weight_{kind}_l{layer}") for kind in ("ih", "hh"))
    input_bias, state_bias = (getattr(lstm, f"bias_{kind}_l{layer}") for kind in ("ih", "hh"))
    state = inputs.new_zeros(len(inputs), lstm.hidden_size)
    memory = torch.zeros_like(state)
    states = []
    for day in inputs.unbind(dim=1):
        gates = F.linear(day, input_weight, input_bias) + F.linear(state, state_weight, state_bias)
        keep_in, forget, candidate, show = gates.chunk(4, dim=1)
        memory = forget.sigmoid() * memory + keep_in.sigmoid() * candidate.tanh()
        state = show.sigmoid() * memory.tanh()
        states.append(state)
    return torch.stack(states, dim=1)
