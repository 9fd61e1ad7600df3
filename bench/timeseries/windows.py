"""What is one sample? Some days in a row, and the target of the day after them.

The series is divided by time: the model is judged on days that come after all it has learnt
from, and nothing that is computed for the training part depends on a later day.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, RandomSampler, Sampler, SequentialSampler

from bench.timeseries.series import Series
from bench.timeseries.settings import Settings
from diagnose.workload import WorkloadError

TRAINING_PERCENT = 70
VALIDATION_PERCENT = 15  # the rest is the test part

Sample = tuple[Tensor, Tensor]  # (sequence, features) and a number
Batch = list[Tensor]  # windows (batch, sequence, features) and targets (batch,)

# What the model knows about a day: what was measured until then, and the calendar.
TARGET_LAGS = (1, 2, 3, 7, 14, 30)
TARGET_MEANS = (3, 7, 14, 30)
TARGET_DEVIATIONS = (7, 30)
OTHER_LAG = 1
OTHER_MEAN = 7
# The first days have no complete past; they lend theirs to the later ones and are left out.
HISTORY = max(*TARGET_LAGS, *TARGET_MEANS, *TARGET_DEVIATIONS)
# A column of text with more values than this is a remark, not a category.
MOST_CATEGORIES = 12

_DAYS_OF_YEAR, _MONTHS, _WEEKDAYS = 365.25, 12, 7
_SATURDAY = 5


def build_features(series: Series, target: str, training_days: int) -> dict[str, Tensor]:
    """Everything about a day that is known on its evening; row r is day r + HISTORY.

    Which categories there are is learnt from the first `training_days` alone.
    """
    columns = _build_columns(series, target, training_days)
    return {name: column[-(len(series) - HISTORY) :] for name, column in columns}


def _build_columns(series: Series, target: str, training_days: int) -> Iterator[tuple[str, Tensor]]:
    """Columns may be shorter than the series: what is missing is missing at the beginning."""
    numbers = {
        name: torch.tensor(cells, dtype=torch.float64) for name, cells in series.numbers.items()
    }
    yield from numbers.items()
    yield from _encode_calendar(series.days)
    past = numbers.pop(target)
    for lag in TARGET_LAGS:
        yield f"{target} {lag} days before", past[:-lag]
    yield f"{target} change", past[1:] - past[:-1]
    for span in TARGET_MEANS:
        yield f"{target} mean of {span} days", past.unfold(0, span, 1).mean(dim=1)
    for span in TARGET_DEVIATIONS:
        yield f"{target} deviation of {span} days", past.unfold(0, span, 1).std(dim=1)
    for name, cells in series.categories.items():
        yield from _encode_category(name, cells, training_days)
    for name, values in numbers.items():
        yield f"{name} {OTHER_LAG} day before", values[:-OTHER_LAG]
        yield f"{name} mean of {OTHER_MEAN} days", values.unfold(0, OTHER_MEAN, 1).mean(dim=1)


def _encode_calendar(days: tuple[date, ...]) -> Iterator[tuple[str, Tensor]]:
    """Places on circles, so that the 31st of December is next to the 1st of January."""
    circles = {
        "day of the year": [day.timetuple().tm_yday / _DAYS_OF_YEAR for day in days],
        "month": [day.month / _MONTHS for day in days],
        "weekday": [day.weekday() / _WEEKDAYS for day in days],
    }
    for name, places in circles.items():
        angles = 2 * math.pi * torch.tensor(places, dtype=torch.float64)
        yield f"{name} sine", angles.sin()
        yield f"{name} cosine", angles.cos()
    weekend = [day.weekday() >= _SATURDAY for day in days]
    yield "weekend", torch.tensor(weekend, dtype=torch.float64)


def _encode_category(
    name: str, cells: tuple[str, ...], training_days: int
) -> Iterator[tuple[str, Tensor]]:
    """One column per value; a value that the training part does not know is none of them."""
    known = sorted(set(cells[:training_days]))
    if len(known) > MOST_CATEGORIES:
        return
    for value in known:
        same = [cell == value for cell in cells]
        yield f"{name} {value}", torch.tensor(same, dtype=torch.float64)


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
    first_target = HISTORY + sequence
    if training_end <= first_target:
        least = -(-100 * (first_target + 1) // TRAINING_PERCENT)
        raise WorkloadError(
            f"{series.description} has {len(series)} days; sequences of {sequence} days need at "
            f"least {least}, because lags take {HISTORY} more days and "
            f"{TRAINING_PERCENT} % are for training; give more days or a shorter sequence"
        )
    columns = build_features(series, target, training_end)
    values = torch.stack(list(columns.values()), dim=1)  # (days, features), float64
    wanted = torch.tensor(series.numbers[target], dtype=torch.float64)
    feature_scaler = _fit(values[: training_end - HISTORY])
    target_scaler = _fit(wanted[HISTORY:training_end])
    rows = feature_scaler.apply(values).float()
    targets = target_scaler.apply(wanted).float()

    def select(first: int, end: int) -> Windows:
        rows_first = first - sequence - HISTORY
        rows_end = end - 1 - HISTORY
        days = rows[rows_first:rows_end].clone()
        return Windows(days, targets[first:end].clone(), wanted[first:end].clone(), sequence)

    return Parts(
        training=select(first_target, training_end),
        validation=select(training_end, validation_end),
        test=select(validation_end, len(series)),
        feature_names=tuple(columns),
        feature_scaler=feature_scaler,
        target_scaler=target_scaler,
    )


def _fit(training: Tensor) -> Scaler:
    deviation = training.std(dim=0)
    # What never changes in training has no scale of its own.
    return Scaler(training.mean(dim=0), torch.where(deviation > 0, deviation, 1.0))


def open_loader(
    settings: Settings, windows: Windows, device: torch.device, shuffle_seed: int | None = None
) -> DataLoader[Sample]:
    """Batches in the order of time, or in an order that depends on the seed and nothing else."""
    sampler: Sampler[int] = SequentialSampler(windows)
    if shuffle_seed is not None:
        # Its own generator: the loader draws from the default one whenever it starts workers.
        generator = torch.Generator().manual_seed(shuffle_seed)
        sampler = RandomSampler(windows, generator=generator)
    return DataLoader(
        windows,
        settings.batch_size,
        sampler=sampler,
        num_workers=settings.workers,
        # torch refuses both options where there are no workers.
        prefetch_factor=settings.prefetch if settings.workers else None,
        persistent_workers=settings.keep_workers and settings.workers > 0,
        pin_memory=device.type == "cuda",
    )
