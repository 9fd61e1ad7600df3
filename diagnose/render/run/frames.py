"""What do the tables hold? One DataFrame per table, derived from a record.

Every optional number `x` stands beside `x_reason`, which says why it is missing. Columns are
objects, not floats, because pandas would turn a missing number into NaN.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pandas as pd

from diagnose.analyze import derive
from diagnose.analyze.flags import too_noisy
from diagnose.records.header import Reading
from diagnose.records.run import Measurement, RunRecord
from diagnose.records.stats import Interval

# What each measurement of a stage has that the next one has not: the result against its
# reference, and that against a plainer one. In the order of the stages.
ADDED_PARTS = {
    "training": ("loss, backward and optimiser",),
    "precision": ("low precision instead of full",),
    "real_data": ("input pipeline", "real batches instead of a synthetic one"),
    "full_model": ("model around the backbone",),
}

READINGS: dict[str, Callable[[RunRecord, Measurement], Reading]] = {
    "samples_per_second": lambda _, measurement: derive.samples_per_second(measurement),
    "watts": lambda _, measurement: derive.watts(measurement),
    "joules_per_sample": lambda _, measurement: derive.joules_per_sample(measurement),
    "utilization": lambda _, measurement: derive.utilization(measurement),
    "power_share": lambda _, measurement: derive.power_share(measurement),
    "peak_bytes": lambda _, measurement: measurement.peak_bytes,
    "attainable": derive.attainable_share,
}


def stage_frame(record: RunRecord) -> pd.DataFrame:
    """One row per measurement; a stage without any has one row with its status."""
    rows: list[dict[str, Any]] = []
    for stage in record.stages:
        head = {
            "stage": stage.key,
            "title": stage.title,
            "status": stage.status,
            "reason": stage.reason,
        }
        if not stage.measurements:
            rows.append({**head, **_nothing(stage.reason)})
        for measurement in stage.measurements:
            rows.append({**head, **_measured(record, measurement)})
    return _frame(rows)


def ledger_frame(record: RunRecord) -> pd.DataFrame:
    """One row per part whose cost was measured, block by block, against the step without it."""
    rows: list[dict[str, Any]] = []
    for key, parts in ADDED_PARTS.items():
        stage = derive.find_stage(record, key)
        measured = itertools.pairwise(stage.measurements if stage else ())
        costs = zip(parts, derive.stage_differences(record, key), measured, strict=False)
        for part, cost, sides in costs:
            row: dict[str, Any] = {"stage": key, "part": part, "blocks": cost.blocks}
            row["noisy"] = any(map(too_noisy, sides))
            row.update(_interval("ms", cost.seconds, 1e3))
            row.update(_interval("share", cost.share, 1))
            rows.append(row)
    return _frame(rows)


def loader_frame(record: RunRecord) -> pd.DataFrame:
    """One row per loader configuration; `series` names what differs besides the workers."""
    measurements = derive.results(record, "loader")
    names = derive.varying_settings(measurements, but="workers")
    rows: list[dict[str, Any]] = []
    for each in measurements:
        series = derive.describe_settings(each, names) or str(each.settings.get("storage", "data"))
        row: dict[str, Any] = {"workers": each.settings.get("workers"), "series": series}
        row.update(_interval("ms", derive.step_seconds(each), 1e3))
        row.update(_reading("samples_per_second", derive.samples_per_second(each)))
        rows.append(row)
    return _frame(rows)


def _measured(record: RunRecord, measurement: Measurement) -> dict[str, Any]:
    row: dict[str, Any] = {
        "name": measurement.name,
        "role": measurement.role,
        "batch_size": measurement.settings.get("batch_size"),
        "dtype": measurement.settings.get("dtype"),
        "slots": len(measurement.timing.slot_seconds),
        "noisy": too_noisy(measurement),
        "ms_reason": "",
    }
    row.update(_interval("ms", derive.step_seconds(measurement), 1e3))
    for name, read in READINGS.items():
        row.update(_reading(name, read(record, measurement)))
    return row


def _nothing(reason: str) -> dict[str, Any]:
    # Every column of a measured row: where nothing was measured, no other row brings them.
    empty = ("name", "batch_size", "dtype", "slots", "ms", "ms_low", "ms_high")
    row: dict[str, Any] = dict.fromkeys(empty)
    row.update(role="result", noisy=False, ms_reason=reason)
    for name in READINGS:
        row.update(_reading(name, Reading(None, reason)))
    return row


def _interval(name: str, interval: Interval, factor: float) -> dict[str, float | None]:
    return {
        name: interval.center * factor,
        f"{name}_low": None if interval.low is None else interval.low * factor,
        f"{name}_high": None if interval.high is None else interval.high * factor,
    }


def _reading(name: str, reading: Reading) -> dict[str, Any]:
    return {name: reading.value, f"{name}_reason": reading.reason}


def _frame(rows: list[dict[str, Any]]) -> pd.DataFrame:
    frame = pd.DataFrame(rows, dtype=object)
    return frame.where(frame.notna(), None)
