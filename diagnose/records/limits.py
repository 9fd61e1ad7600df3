"""Can this have been measured at all? Bounds that no honest record leaves."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from diagnose.records.run import Measurement, RunRecord
from diagnose.records.script import ScriptRecord

# Far above any FLOP count of a step; keeps sums and quotients of sane numbers finite.
LARGEST_NUMBER = 1e24
# The clock counts nanoseconds, so a shorter slot was never measured.
SHORTEST_SLOT_SECONDS = 1e-9
# The interval compares all pairs of slots; a real run stops at some hundred.
MOST_SLOTS = 2000


def validate(record: Any) -> None:
    """A ValueError for a record that has the right types but cannot have been measured."""
    _check_numbers(dataclasses.asdict(record), "record")
    if isinstance(record, RunRecord):
        _check_run(record)
    elif isinstance(record, ScriptRecord):
        _check_script(record)


def _check_numbers(value: Any, path: str) -> None:
    if isinstance(value, Mapping):
        for key, each in value.items():
            _check_numbers(each, f"{path}.{key[:40]}")
    elif isinstance(value, (list, tuple)):
        for each in value:
            _check_numbers(each, path)
    elif isinstance(value, (int, float)) and not abs(value) <= LARGEST_NUMBER:
        raise ValueError(f"{path}: a number is out of range")


def _check_run(record: RunRecord) -> None:
    gpus = len(record.header.machine.gpus)
    for stage in record.stages:
        for measurement in stage.measurements:
            _check_measurement(f"{stage.key[:40]}/{measurement.name[:40]}", measurement, gpus)
    for link in record.header.machine.links:
        if not all(0 <= gpu < gpus for gpu in (link.first, link.second)):
            raise ValueError("record.header.machine.links: a link names a GPU that is not there")
    data = record.workload.data
    if data is not None and not 0 <= data.padding_share <= 1:
        raise ValueError("record.workload.data.padding_share: not between 0 and 1")


def _check_script(record: ScriptRecord) -> None:
    windows = [*record.windows, *(each for rank in record.ranks for each in rank.windows)]
    occasions = [seconds for each in record.occasions for seconds in (*each.ran, *each.left_out)]
    seconds = [*record.step_seconds, *(each.seconds for each in windows), *occasions]
    if min(seconds, default=1.0) < SHORTEST_SLOT_SECONDS:
        raise ValueError("record: a step is shorter than a nanosecond")
    steps = [each.steps for each in windows] + [each.steps for each in record.occasions]
    if min(steps, default=1) < 1:
        raise ValueError("record: a window has no step")
    if min((each.samples for each in record.changes), default=1.0) <= 0:
        raise ValueError("record.changes: a step has no batch")


def _check_measurement(path: str, measurement: Measurement, gpus: int) -> None:
    timing = measurement.timing
    if timing.steps_per_slot < 1:
        raise ValueError(f"{path}: steps_per_slot is below 1")
    if not 1 <= len(timing.slot_seconds) <= MOST_SLOTS:
        raise ValueError(f"{path}: {len(timing.slot_seconds)} slots")
    if len(timing.slot_starts) != len(timing.slot_seconds):
        raise ValueError(f"{path}: the number of slot starts and of slots differ")
    if min(timing.slot_seconds) < SHORTEST_SLOT_SECONDS:
        raise ValueError(f"{path}: a slot is shorter than a nanosecond")
    if measurement.samples_per_step is not None and measurement.samples_per_step < 1:
        raise ValueError(f"{path}: samples_per_step is below 1")
    for use in measurement.gpus:
        if not 0 <= use.gpu < gpus:
            raise ValueError(f"{path}: names GPU {use.gpu}, which is not there")
