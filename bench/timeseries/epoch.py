"""What does one epoch under given settings cost, and what does it compute?

`open_epoch` is what is timed; `loss_curve` and `gradients` are what two settings are held
against each other by.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from pathlib import Path

import torch
from torch import Tensor

from bench.data.waits import Waits
from bench.timeseries.series import find_target, read
from bench.timeseries.settings import Settings
from bench.timeseries.training import (
    accumulate_gradients,
    apply_gradients,
    group_batches,
    make_trainer,
    predict_all,
    train,
    use_tf32,
    weigh_days,
)
from bench.timeseries.windows import Parts, cut, open_loader

# Enough to see the shape of a curve, and few enough that each point averages its noise.
CURVE_POINTS = 16


class Epoch:
    """A model, its data and its optimiser, ready to train."""

    def __init__(self, settings: Settings, device: torch.device, seed: int, parts: Parts) -> None:
        self.trainer = make_trainer(settings, len(parts.feature_names), device, seed)
        self.samples = len(parts.training)  # windows that one step() trains on
        self.training = open_loader(settings, parts.training, device, seed)
        self.validation = open_loader(settings, parts.validation, device)
        self.waits = Waits()
        self._tf32 = settings.tf32

    def step(self) -> None:
        """One epoch as the job runs it: every training window once, then the validation."""
        self.train()
        self.evaluate()

    def train(self) -> float:
        """Every training window once; the mean loss, the only thing that is read."""
        with use_tf32(self._tf32):
            batches = self.waits.over(self.training)
            return float(torch.cat(list(train(self.trainer, batches))).mean())

    def evaluate(self) -> Tensor:
        """The scaled prediction for every validation window, on the host."""
        with use_tf32(self._tf32):
            return predict_all(self.trainer, self.waits.over(self.validation))

    def weigh_days(self) -> Tensor:
        """The mean attention that each day of a validation window gets, on the host."""
        with use_tf32(self._tf32):
            return weigh_days(self.trainer, self.waits.over(self.validation))

    def parameters(self) -> list[Tensor]:
        return list(self.trainer.model.parameters())


@contextmanager
def open_epoch(
    settings: Settings, device: torch.device, seed: int, parts: Parts
) -> Iterator[Epoch]:
    """Ready for step(). TF32 is as the settings say only within a call: two may be open at once."""
    epoch = Epoch(settings, device, seed, parts)
    try:
        yield epoch
    finally:
        # Worker processes that were kept end with the loader that started them.
        del epoch.training, epoch.validation


def loss_curve(
    settings: Settings, device: torch.device, seed: int, samples: int, data: Path | None = None
) -> tuple[float, ...]:
    """Mean training losses over CURVE_POINTS equal shares of the first `samples` windows seen.

    Point k covers the same windows whatever the batch size is.
    """
    assert samples >= CURVE_POINTS, f"{samples} samples are too few for {CURVE_POINTS} points"
    opened = open_epoch(settings, device, seed, read_parts(settings, data))
    with opened as epoch, use_tf32(settings.tf32):
        errors: list[Tensor] = []
        seen = 0
        while seen < samples:
            for each in train(epoch.trainer, epoch.training):
                errors.append(each)
                seen += len(each)
                if seen >= samples:
                    break
        shares = torch.cat(errors)[:samples].tensor_split(CURVE_POINTS)
        curve: list[float] = torch.stack([share.mean() for share in shares]).tolist()
    return tuple(curve)


def gradients(
    settings: Settings,
    device: torch.device,
    seed: int,
    data: Path | None = None,
    *,
    steps: int = 1,
) -> dict[str, Tensor]:
    """Of the last of the first `steps` optimiser steps, by parameter name, before clipping.

    Without dropout: its random numbers are drawn differently by forms that compute the same.
    """
    exact = replace(settings, dropout=0.0)
    opened = open_epoch(exact, device, seed, read_parts(exact, data))
    with opened as epoch, use_tf32(exact.tf32):
        groups = group_batches(epoch.training, settings.accumulate)
        for group in islice(groups, steps - 1):
            accumulate_gradients(epoch.trainer, group)
            apply_gradients(epoch.trainer)
        accumulate_gradients(epoch.trainer, next(groups))
        epoch.trainer.scaler.unscale_(epoch.trainer.optimizer)
        named = epoch.trainer.model.named_parameters()
        return {name: each.grad.clone() for name, each in named if each.grad is not None}


def read_parts(settings: Settings, data: Path | None = None, target: str | None = None) -> Parts:
    series = read(data)
    return cut(series, find_target(series, target), settings.sequence)
