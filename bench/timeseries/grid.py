"""Which size of the model predicts best? Eight candidates, judged on the validation part."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product

import torch

from bench.timeseries.settings import Settings
from bench.timeseries.training import PATIENCE, Trainer, fit, make_trainer
from bench.timeseries.windows import Parts

HIDDEN = (128, 256)
LAYERS = (2, 3)
DROPOUT = (0.2,)
LEARNING_RATES = (1e-3, 5e-3)


@dataclass(frozen=True)
class Candidate:
    """One point of the grid, trained to its end."""

    settings: Settings
    trainer: Trainer
    validation_loss: float  # of its best epoch, whose weights it has
    epochs: int


def list_candidates(base: Settings) -> list[Settings]:
    return [
        replace(base, hidden=hidden, layers=layers, dropout=dropout, learning_rate=rate)
        for hidden, layers, dropout, rate in product(HIDDEN, LAYERS, DROPOUT, LEARNING_RATES)
    ]


def search(
    base: Settings,
    parts: Parts,
    device: torch.device,
    seed: int,
    epochs: int,
    patience: int = PATIENCE,
) -> Iterator[Candidate]:
    """Every candidate from the same seed; the caller keeps the one with the least loss."""
    for settings in list_candidates(base):
        trainer = make_trainer(settings, len(parts.feature_names), device, seed)
        losses = [each.validation_loss for each in fit(trainer, parts, seed, epochs, patience)]
        yield Candidate(settings, trainer, min(losses), len(losses))
