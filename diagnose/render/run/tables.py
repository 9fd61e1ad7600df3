"""What do the tables of measured numbers look like? An empty cell always says why."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

from diagnose.analyze import derive
from diagnose.analyze.run.device_causes import WAITING_POWER_SHARE, WORKING_POWER_SHARE
from diagnose.analyze.run.input_causes import fastest
from diagnose.analyze.units import (
    milliseconds,
    number,
    percent,
    percent_interval,
    scale,
    scaled,
    scaled_spread,
    spread,
)
from diagnose.records.run import RunRecord
from diagnose.records.stats import Interval
from diagnose.render.markdown import Align, Footnotes, Markup, prose, table
from diagnose.render.run import frames

Row = Any  # one row of a DataFrame

# Beyond flags.SPREAD_CRITICAL: a number to measure again, not to build on.
NOISY = "noisy"

# First the columns of the report that this one improves on, then what it lacked.
_STAGE_HEADERS = (
    "stage",
    Markup("ms/iter [95 % interval]"),
    "samples/s",
    "GPU power W",
    "remark",
    "J/sample",
    "NVML utilisation",
    "power share (W ÷ limit)",
    "peak memory",
    "% of attainable",
)
_STAGE_ALIGN: tuple[Align, ...] = ("left", "right", "right", "right", "left") + ("right",) * 5


def stages(record: RunRecord) -> list[str]:
    notes = Footnotes()
    frame = frames.stage_frame(record)
    rows = []
    for stage in record.stages:
        if stage.key == "ceilings":
            continue
        of_stage = [row for _, row in frame.iterrows() if row["stage"] == stage.key]
        results = [row for row in of_stage if row["role"] == "result"] or of_stage
        rows.append(_stage_row(record, min(results, key=_speed_order), notes))
    for key in record.planned:
        if derive.find_stage(record, key) is None and key != "ceilings":
            cells = [notes.missing("the run ended before this stage") for _ in _STAGE_HEADERS]
            rows.append([key, *cells[1:4], "not reached", *cells[5:]])
    if not rows:
        return ["No stage was measured."]
    return _with_notes(table(_STAGE_HEADERS, rows, _STAGE_ALIGN), notes)


def _speed_order(row: Row) -> float:
    return float("inf") if row["ms"] is None else float(row["ms"])


def _stage_row(record: RunRecord, row: Row, notes: Footnotes) -> list[str]:
    def cell(name: str, write: Callable[[float], str]) -> str:
        return notes.missing(row[f"{name}_reason"]) if row[name] is None else write(row[name])

    time = notes.missing(row["ms_reason"]) if row["ms"] is None else _interval(row, "ms")
    return [
        row["title"],
        time,
        cell("samples_per_second", lambda value: number(value, 4)),
        cell("watts", lambda value: f"{value:.0f}"),
        _remark(record, row),
        cell("joules_per_sample", lambda value: number(value, 3)),
        cell("utilization", percent),
        cell("power_share", percent),
        cell("peak_bytes", lambda value: scaled(value, "B")),
        cell("attainable", percent),
    ]


def _remark(record: RunRecord, row: Row) -> str:
    key = row["stage"]
    words = [] if row["status"] == "done" else [row["status"]]
    if row["noisy"]:
        words.append(NOISY)
    if key == "loader" and row["status"] == "done":
        words += _loader_remark(record)
    elif row["dtype"]:
        words.append(str(row["dtype"]))
        base = derive.result(record, "inference")
        if base is not None and row["batch_size"] != base.settings.get("batch_size"):
            words.append(f"batch {row['batch_size']}")
    measured, compared = derive.result(record, key), derive.reference(record, key)
    if measured is not None and compared is not None and key == "precision":
        ratio = derive.step_seconds(compared).center / derive.step_seconds(measured).center
        words.append(f"{number(ratio, 3)}x the speed of full precision")
    share = row["power_share"]
    if share is not None and share >= WORKING_POWER_SHARE:
        words.append("GPU loaded")
    elif share is not None and share < WAITING_POWER_SHARE:
        words.append("GPU waits")
    return ", ".join(words)


def _loader_remark(record: RunRecord) -> list[str]:
    measured = derive.results(record, "loader")
    best = fastest(measured)
    if best is None or len(measured) == 1:
        return []
    varying = derive.varying_settings(measured)
    return [f"fastest of {len(measured)}: {derive.describe_settings(best, varying)}"]


def ledger(record: RunRecord) -> list[str]:
    frame = frames.ledger_frame(record)
    if frame.empty:
        return ["No stage was compared with an earlier one."]
    rows = [
        [
            row["part"],
            row["stage"],
            _interval(row, "ms"),
            _percent(row),
            str(row["blocks"]),
            NOISY if row["noisy"] else "",
        ]
        for _, row in frame.iterrows()
    ]
    headers = [
        "part",
        "measured in",
        Markup("costs ms [95 % interval]"),
        "% of that step",
        "blocks",
        "remark",
    ]
    align: tuple[Align, ...] = ("left", "left", "right", "right", "right", "left")
    return [table(headers, rows, align), "A negative cost is time saved."]


def ceilings(record: RunRecord) -> list[str]:
    stage = derive.find_stage(record, "ceilings")
    rows = []
    for each in derive.results(record, "ceilings"):
        seconds = derive.operation_seconds(each)
        speed = derive.rate(each, each.flops_per_step)
        unit = "FLOP/s"
        if speed is None:
            speed, unit = derive.rate(each, each.bytes_per_step), "B/s"
        if speed is None:
            attained = f"{spread(scale(seconds, 1e6))} µs"
        else:
            attained = scaled_spread(speed, unit)
        rows.append([each.name, attained, milliseconds(seconds)])
    blocks = []
    if rows:
        blocks.append(
            table(["operation", Markup("attained [95 % interval]"), "ms per operation"], rows)
        )
    if stage is None:
        blocks.append("This stage was not reached.")
    elif stage.status != "done":
        blocks.append(f"This stage {stage.status}: {prose(stage.reason)}")
    return blocks + [f"- {prose(note)}" for note in (stage.notes if stage else ())]


def loader(record: RunRecord) -> list[str]:
    frame = frames.loader_frame(record)
    if frame.empty:
        stage = derive.find_stage(record, "loader")
        reason = stage.reason if stage and stage.reason else "this stage was not reached"
        return [f"The loader was not measured: {prose(reason)}"]
    notes = Footnotes()
    workers = list(dict.fromkeys(frame["workers"]))
    rows = []
    for series in dict.fromkeys(frame["series"]):
        cells = [series]
        for count in workers:
            found = frame[(frame["series"] == series) & (frame["workers"] == count)]
            cells.append(
                notes.missing("this combination was not measured")
                if found.empty
                else _interval(found.iloc[0], "ms")
            )
        rows.append(cells)
    headers = ["ms/batch", *(f"{count} workers" for count in workers)]
    return _with_notes(table(headers, rows), notes)


def percentiles(record: RunRecord) -> list[str]:
    notes = Footnotes()
    rows = []
    for key in (*derive.HEADLINE_STAGES[::-1], "precision"):
        measured = derive.result(record, key)
        if measured is None:
            continue
        steps = measured.timing.step_seconds
        if record.header.machine.wsl2 and measured.timing.step_clock == "device events":
            clock = "device events (unreliable under WSL2)"
        else:
            clock = measured.timing.step_clock
        middle = (
            number(1e3 * statistics.median(steps))
            if steps
            else notes.missing(measured.timing.step_clock_reason or "single steps were not timed")
        )
        cells = [key, str(len(steps)), clock, middle]
        for share in derive.STEPS_FOR_PERCENTILE:
            bound = derive.percentile(measured.timing, share)
            cells.append(
                notes.missing(bound.reason) if bound.value is None else number(1e3 * bound.value)
            )
        rows.append(cells)
    if not rows:
        return ["No step was timed."]
    headers = ["stage", "single steps timed", "clock", "median ms", "p90 ms", "p99 ms"]
    return _with_notes(table(headers, rows), notes)


def _with_notes(text: str, notes: Footnotes) -> list[str]:
    return [text, "\n".join(notes.lines())] if notes.lines() else [text]


def _interval(row: Row, name: str) -> str:
    return spread(Interval(row[name], row[f"{name}_low"], row[f"{name}_high"]))


def _percent(row: Row) -> str:
    return percent_interval(Interval(row["share"], row["share_low"], row["share_high"]))
