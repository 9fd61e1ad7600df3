"""What do the tables of a run look like? An empty cell always says why."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable
from dataclasses import dataclass

from diagnose.analyze import derive
from diagnose.analyze.flags import too_noisy
from diagnose.analyze.run.rules import WAITING_POWER_SHARE, WORKING_POWER_SHARE
from diagnose.analyze.units import (
    BYTES,
    MILLISECONDS,
    PERCENT,
    Unit,
    number,
    pcie_link,
    scale,
    scaled_spread,
    spread,
)
from diagnose.records.header import Gpu, Reading, Setting
from diagnose.records.run import GpuUse, Measurement, RunRecord
from diagnose.render.markdown import Markup, prose
from diagnose.render.table import Cell, Column, Doubt, code, missing, share_of, table

# Beyond flags.SPREAD_CRITICAL: a number to measure again, not to build on.
NOISY = "noisy"
# What each measurement of a stage has that the next one has not: the result against its
# reference, and that against a plainer one. Of another stage with a reference: its title.
ADDED_PARTS = {
    "training": ("loss, backward and optimizer",),
    "precision": ("low precision instead of full",),
    "real_data": ("input pipeline", "real batches instead of a synthetic one"),
    "full_model": ("model around the backbone",),
}
_INTERVAL = " [95 % interval]"
_RATE, _WATTS, _MEGAHERTZ = Unit(significant=4), Unit(significant=3), Unit(1e-6)
_CORES = Unit(significant=2)

# The stage, what is added in it, its cost, and both sides of the comparison.
_CostRow = tuple[str, str, derive.Difference, tuple[Measurement, Measurement]]
_StepRow = tuple[str, Measurement]
_GpuRow = tuple[str, GpuUse, Gpu]


@dataclass(frozen=True)
class _StageRow:
    title: str
    remark: str
    measured: Measurement | None
    reason: str  # why nothing was measured
    cpu_cores: Reading | None = None


def stages(record: RunRecord) -> list[str]:
    def column(header: str, read: Callable[[Measurement], Cell], unit: Unit) -> Column[_StageRow]:
        def value(row: _StageRow) -> Cell:
            return missing(row.reason) if row.measured is None else read(row.measured)

        return Column(header, value, unit)

    cores = record.header.machine.cpu_cores
    of_all = f" (of {cores})" if cores else ""
    # First the columns of the report that this one improves on, then what it lacked.
    columns = [
        Column[_StageRow]("stage", lambda row: row.title),
        column(Markup(f"ms/iter{_INTERVAL}"), derive.step_seconds, MILLISECONDS),
        column("samples/s", derive.samples_per_second, _RATE),
        column("GPU power W", derive.watts, _WATTS),
        Column[_StageRow]("remark", lambda row: row.remark, left=True),
        column("J/sample", derive.joules_per_sample, _WATTS),
        column("NVML utilization", derive.utilization, PERCENT),
        column("power share (W ÷ limit)", derive.power_share, PERCENT),
        column("peak memory", lambda each: each.peak_bytes, BYTES),
        Column[_StageRow](f"CPU cores busy{of_all}", lambda row: row.cpu_cores, _CORES),
        column("% of attainable", lambda each: derive.attainable_share(record, each), PERCENT),
        column("moving ÷ step, at most", _moving(record), PERCENT),
    ]
    return table(_stage_rows(record), columns, "No stage was measured.")


def _moving(record: RunRecord) -> Callable[[Measurement], Cell]:
    """What moving all operands would take of a step, if no cache helped."""
    reason = "bytes are counted of steps, and compared with the measured memory rate"
    return lambda each: derive.moving_share(record, each) or missing(reason)


def _stage_rows(record: RunRecord) -> list[_StageRow]:
    rows = []
    for stage in record.stages:
        if stage.key != "ceilings":
            measured = derive.shown(stage)
            words: list[str] = [] if stage.status == "done" else [stage.status]
            if measured is not None:
                words += _remark(record, stage.key, measured, done=stage.status == "done")
            row = stage.title, ", ".join(words), measured, stage.reason, stage.cpu_cores
            rows.append(_StageRow(*row))
    for key in record.planned:
        if derive.find_stage(record, key) is None and key != "ceilings":
            rows.append(_StageRow(key, "not reached", None, "the run ended before this stage"))
    return rows


def _remark(record: RunRecord, key: str, measured: Measurement, *, done: bool) -> list[str]:
    words = [NOISY] if too_noisy(measured) else []
    dtype = measured.settings.get("dtype")
    if key == "loader" and done:
        every = derive.results(record, key)
        varying = derive.varying_settings(every)
        if len(every) > 1:
            best = derive.describe_settings(measured, varying)
            words.append(f"fastest of {len(every)}: {best}")
    elif dtype:
        words.append(str(dtype))
        base = derive.result(record, "inference")
        batch_size = measured.settings.get("batch_size")
        if base is not None and batch_size != base.settings.get("batch_size"):
            words.append(f"batch {batch_size}")
    compared = derive.reference(record, key)
    if compared is not None and key == "precision":
        ratio = derive.step_seconds(compared).center / derive.step_seconds(measured).center
        words.append(f"{number(ratio, 3)}x the speed of full precision")
    share = derive.power_share(measured).value
    if share is not None and share >= WORKING_POWER_SHARE:
        words.append("GPU loaded")
    elif share is not None and share < WAITING_POWER_SHARE:
        words.append("GPU waits")
    return words


def ledger(record: RunRecord) -> list[str]:
    """What was measured block by block against the step without it."""
    rows = []
    for stage in record.stages:
        if derive.reference(record, stage.key) is not None:
            parts = ADDED_PARTS.get(stage.key, (stage.title,))
            sides = itertools.pairwise(stage.measurements)
            costs = derive.stage_differences(record, stage.key)
            rows += [(stage.key, *each) for each in zip(parts, costs, sides, strict=False)]
    columns: list[Column[_CostRow]] = [
        Column("part", lambda row: row[1]),
        Column("measured in", lambda row: code(row[0]), left=True),
        Column(Markup(f"costs ms{_INTERVAL}"), lambda row: row[2].seconds, MILLISECONDS),
        Column("% of that step", lambda row: row[2].share, PERCENT),
        Column("blocks", lambda row: row[2].blocks),
        Column("remark", lambda row: NOISY if any(map(too_noisy, row[3])) else "", left=True),
    ]
    blocks = table(rows, columns, "No stage was compared with an earlier one.")
    return [*blocks, "A negative cost is time saved."] if rows else blocks


def ceilings(record: RunRecord) -> list[str]:
    stage = derive.find_stage(record, "ceilings")
    columns: list[Column[Measurement]] = [
        Column("operation", lambda each: each.name),
        Column(Markup(f"attained{_INTERVAL}"), _attained),
        Column("ms per operation", derive.operation_seconds, MILLISECONDS),
    ]
    blocks = table(derive.results(record, "ceilings"), columns)
    if stage is None:
        return ["This stage was not reached."]
    if stage.status != "done":
        blocks.append(f"This stage {stage.status}: {prose(stage.reason)}")
    return blocks + [f"- {prose(note)}" for note in stage.notes]


def _attained(each: Measurement) -> str:
    for amount, unit in ((each.flops_per_step, "FLOP/s"), (each.bytes_per_step, "B/s")):
        speed = derive.rate(each, amount)
        if speed is not None:
            return scaled_spread(speed, unit)
    return f"{spread(scale(derive.operation_seconds(each), 1e6))} µs"


def loader(record: RunRecord) -> list[str]:
    series = derive.loader_series(record)
    stage = derive.find_stage(record, "loader")
    reason = stage.reason if stage and stage.reason else "this stage was not reached"

    def column(workers: Setting) -> Column[str]:
        def value(name: str) -> Cell:
            if workers not in series[name]:
                return missing("this combination was not measured")
            return derive.step_seconds(series[name][workers])

        return Column(f"{workers} workers", value, MILLISECONDS)

    counts = dict.fromkeys(count for row in series.values() for count in row)
    names: Column[str] = Column("ms/batch", lambda name: name)
    nothing = f"The loader was not measured: {prose(reason)}"
    return table(series, [names, *map(column, counts)], nothing)


def percentiles(record: RunRecord) -> list[str]:
    def clock(row: _StepRow) -> str:
        clock = row[1].timing.step_clock
        unreliable = record.header.machine.wsl2 and clock == "device events"
        return f"{clock} (unreliable under WSL2)" if unreliable else clock

    columns: list[Column[_StepRow]] = [
        Column("stage", lambda row: code(row[0])),
        Column("single steps timed", lambda row: len(row[1].timing.step_seconds)),
        Column("clock", clock, left=True),
        Column("median ms", lambda row: _median(row[1]), MILLISECONDS),
        Column("p90 ms", lambda row: derive.percentile(row[1].timing, 0.90), MILLISECONDS),
        Column("p99 ms", lambda row: derive.percentile(row[1].timing, 0.99), MILLISECONDS),
    ]
    return table(derive.steps(record), columns, "No step was timed.")


def _median(each: Measurement) -> Reading:
    steps = each.timing.step_seconds
    if not steps:
        return Reading(None, each.timing.step_clock_reason or "single steps were not timed")
    return Reading(statistics.median(steps))


def gpu_use(record: RunRecord) -> list[str]:
    """What each GPU did while the step of a stage ran; empty where none was observed."""
    gpus = record.header.machine.gpus
    rows = [
        (stage.title, use, gpus[use.gpu])
        for stage in record.stages
        for shown in [derive.shown(stage)]
        if stage.key != "ceilings" and shown is not None
        for use in shown.gpus
    ]
    columns: list[Column[_GpuRow]] = [
        Column("stage", lambda row: row[0]),
        Column("GPU", lambda row: row[1].gpu),
        Column("W", lambda row: row[1].watts, _WATTS),
        Column("idle W", lambda row: row[1].idle_watts, _WATTS),
        Column("net W", lambda row: _net_watts(row[1]), _WATTS),
        Column("SM MHz", lambda row: row[1].sm_hertz, _MEGAHERTZ),
        Column("memory MHz", lambda row: row[1].memory_hertz, _MEGAHERTZ),
        Column(
            "°C first → last", lambda row: _both(row[1].celsius_first, row[1].celsius_last, _heat)
        ),
        Column(
            "PCIe under load",
            lambda row: _both(row[1].pcie_generation, row[1].pcie_width, pcie_link),
            left=True,
        ),
        Column(
            "PCIe, highest",
            lambda row: _both(row[2].pcie_generation_max, row[2].pcie_width_max, pcie_link),
            left=True,
        ),
        Column("clock limited s", lambda row: _limits(row[1]), left=True),
        Column("energy from", lambda row: _energy(row[1]), left=True),
        Column("memory in use", lambda row: share_of(row[1].memory_bytes, row[2].memory_bytes)),
    ]
    blocks = table(rows, columns)
    return [*blocks, "Net W is W less idle W: what the step itself draws."] if rows else []


def _heat(first: float, last: float) -> str:
    return f"{first:.0f} → {last:.0f}"


def _both(first: Reading, second: Reading, write: Callable[[float, float], str]) -> Cell:
    if first.value is None or second.value is None:
        return first if first.value is None else second
    return Doubt(write(first.value, second.value), first.reason or second.reason)


def _net_watts(use: GpuUse) -> Reading:
    if use.watts.value is None or use.idle_watts.value is None:
        return use.idle_watts if use.idle_watts.value is None else use.watts
    return Reading(use.watts.value - use.idle_watts.value)


def _limits(use: GpuUse) -> Cell:
    """Seconds by reason. They are not added: two reasons can limit the same moment."""
    if not use.throttle_seconds:
        return missing("the limits of the clock were not read")
    reasons = dict.fromkeys(each.reason for each in use.throttle_seconds.values() if each.reason)
    doubts = "; ".join(reasons)
    known = {name: each.value for name, each in use.throttle_seconds.items()}
    if all(value is None for value in known.values()):
        return missing(doubts)
    texts = [f"{name} {number(value, 3)}" for name, value in known.items() if value]
    return Doubt(", ".join(texts) or "0", doubts)


def _energy(use: GpuUse) -> Cell:
    if use.joules.value is None:
        return use.joules
    dropped = f", {use.dropped_samples} samples of 0 W dropped" if use.dropped_samples else ""
    return Doubt(use.joules_source + dropped, use.joules.reason)
