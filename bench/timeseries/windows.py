"""What is one sample? Some days in a row, and the target of the day after them.

The series is divided by time: the model is judged on days that come after all it has learnt
from, and nothing that is computed for the training part depends on a later day.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils.data import Dataset

from bench.timeseries import features
from bench.timeseries.series import Series
from diagnose.workload import WorkloadError

TRAINING_PERCENT = 70
VALIDATION_PERCENT = 15  # the rest is the test part

Sample = tuple[Tensor, Tensor]  # (sequence, features) and a number


@dataclass(frozen=True)
class Scaler:
    """Mean 0 and deviation 1, as far as the training part goes."""

    mean: Tensor
    deviation: Tensor

    def apply(self, values: Tensor) -> Tensor:
        return (values - self.mean) / self.deviation

    def undo(self, values: Tensor) -> Tensor:
        return values * self.deviation + self.mean


class Windows(Dataset[Sample]):
    """Every window of one part; they overlap, so the days are held once."""

    def __init__(self, days: Tensor, targets: Tensor, measured: Tensor, sequence: int) -> None:
        assert len(days) == len(targets) + sequence - 1
        self.days = days  # (windows + sequence - 1, features), scaled
        self.targets = targets  # (windows,), scaled
        self.measured = measured  # the same targets in float64 and in their own units
        self.sequence = sequence

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, window: int) -> Sample:
        return self.days[window : window + self.sequence], self.targets[window]


@dataclass(frozen=True)
class Parts:
    """The series, ready to learn from."""

    training: Windows
    validation: Windows
    test: Windows
    feature_names: tuple[str, ...]
    feature_scaler: Scaler
    target_scaler: Scaler


def cut(series: Series, target: str, sequence: int) -> Parts:
    """Windows of `sequence` days; each belongs to the part in which its target day lies."""
    training_end = len(series) * TRAINING_PERCENT // 100
    validation_end = len(series) * (TRAINING_PERCENT + VALIDATION_PERCENT) // 100
    first_target = features.HISTORY + sequence
    if training_end <= first_target:
        least = -(-100 * (first_target + 1) // TRAINING_PERCENT)
        raise WorkloadError(
            f"{series.description} has {len(series)} days; sequences of {sequence} days need at "
            f"least {least}, because lags take {features.HISTORY} more days and "
            f"{TRAINING_PERCENT} % are for training; give more days or a shorter sequence"
        )
    built = features.build(series, target, training_end)
    wanted = torch.tensor(series.numbers[target], dtype=torch.float64)
    feature_scaler = _fit(built.values[: training_end - features.HISTORY])
    target_scaler = _fit(wanted[features.HISTORY : training_end])
    rows = feature_scaler.apply(built.values).float()
    targets = target_scaler.apply(wanted).float()

    def select(first: int, end: int) -> Windows:
        rows_first = first - sequence - features.HISTORY
        rows_end = end - 1 - features.HISTORY
        days = rows[rows_first:rows_end].clone()
        return Windows(days, targets[first:end].clone(), wanted[first:end].clone(), sequence)

    return Parts(
        training=select(first_target, training_end),
        validation=select(training_end, validation_end),
        test=select(validation_end, len(series)),
        feature_names=built.names,
        feature_scaler=feature_scaler,
        target_scaler=target_scaler,
    )


def _fit(training: Tensor) -> Scaler:
    deviation = training.std(dim=0)
    # What never changes in training has no scale of its own.
    return Scaler(training.mean(dim=0), torch.where(deviation > 0, deviation, 1.0))
