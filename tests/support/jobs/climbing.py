"""A job whose settings are waits of known length, one of which cannot be combined."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch

from diagnose.workload import (
    Fact,
    Lab,
    Ladder,
    OpenTrial,
    Optimization,
    Side,
    Size,
    Treatment,
    Trial,
)
from tests.support.jobs.small import small_job

SCOPE = "training epoch"
# What each change takes from an epoch, in seconds; far apart, so that any machine orders them.
BASE_SECONDS = 0.03
SAVES = {"large": 0.021, "alone_only": 0.012, "small": 0.006}


def open_settings(settings: Mapping[str, Fact]) -> OpenTrial:
    chosen = [key for key in SAVES if settings.get(key)]
    if "alone_only" in chosen and len(chosen) > 1:
        raise RuntimeError("this setting only works alone")
    seconds = BASE_SECONDS - sum(SAVES[key] for key in chosen)

    @contextmanager
    def trial(lab: Lab) -> Iterator[Trial]:
        yield Trial(lambda: time.sleep(seconds), 4)

    return trial


def side(settings: Mapping[str, Fact]) -> Side:
    text = "with it" if settings else "as it was"
    return Side(text, lambda lab: {"result": torch.zeros(1)}, {SCOPE: open_settings(settings)})


def change(key: str) -> Optimization:
    return Optimization(
        key,
        key,
        side({}),
        side({key: True}),
        curves=lambda lab: {"before": (1.0, 0.5), "after": (1.0, 0.4)},
    )


TREATMENT = Treatment(
    tuple(change(key) for key in SAVES),
    ladder=Ladder(SCOPE, {}, {key: {key: True} for key in SAVES}, open_settings),
)


WORKLOAD = small_job("climbing", Size(2), treatment=lambda: TREATMENT)
