"""What does the model know about a day? What was measured until then, and the calendar."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date

import torch
from torch import Tensor

from bench.timeseries.series import Series

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


@dataclass(frozen=True)
class Features:
    """Row r describes day r + HISTORY of the series."""

    names: tuple[str, ...]
    values: Tensor  # (days - HISTORY, features), float64


def build(series: Series, target: str, training_days: int) -> Features:
    """Everything about a day that is known on its evening.

    Which categories there are is learnt from the first `training_days` alone.
    """
    columns = dict(_build_columns(series, target, training_days))
    values = torch.stack([column[-(len(series) - HISTORY) :] for column in columns.values()], dim=1)
    return Features(tuple(columns), values)


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
