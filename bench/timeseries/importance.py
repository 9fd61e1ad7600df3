"""Which days does the model look at? The mean attention that each place of a window gets."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor

from bench.timeseries.loader import Batch
from bench.timeseries.training import Trainer, collect


def weigh_days(trainer: Trainer, loader: Iterable[Batch]) -> Tensor:
    """(sequence,), the latest day last; sums to 1. On the host.

    `evaluate_on_device` decides whether the weights are moved there once or batch by batch.
    """
    return collect(trainer, loader, lambda days: trainer.model.attend(days)[1]).mean(dim=0)


def describe(weights: Tensor, count: int = 3) -> str:
    """The days with the most attention: 'the last day 21 %, 2 days before it 9 %'."""
    names = []
    for place in weights.argsort(descending=True)[:count].tolist():
        before = len(weights) - 1 - place
        when = f"{before} day{'s' if before > 1 else ''} before it" if before else "the last day"
        names.append(f"{when} {weights[place]:.0%}")
    return ", ".join(names)
