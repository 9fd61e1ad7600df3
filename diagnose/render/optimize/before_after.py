"""What do all recommended changes bring together? Speed, power, utilization and memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from diagnose.analyze import derive
from diagnose.analyze.optimize.effects import STEP, fact_of, find, waiting_shares
from diagnose.analyze.optimize.experiment import Outcome, time_ratio
from diagnose.analyze.optimize.ladder import climb
from diagnose.analyze.optimize.plans import combined
from diagnose.analyze.units import BYTES, MILLISECONDS, PERCENT, PLAIN, TIMES, Unit, scale
from diagnose.records.experiments import OptimizeRecord
from diagnose.records.header import Reading
from diagnose.records.run import Measurement
from diagnose.records.stats import Interval
from diagnose.render.markdown import prose
from diagnose.render.table import Column, table

# What the published reports of these jobs and plans measured or expected.
PUBLISHED: Mapping[str, Mapping[str, str]] = {
    "dgca": {
        "it/s": "2.2 → 4.9, 2.2x",
        "GPU power": "200 → 320 W, 1.6x",
        "power ÷ limit": "44 → 71 %, 1.6x",
    },
    "timeseries": {
        "utilization": "20-40 → 70-90 %, 2-3x",
        "samples/s": "500-1000 → 2000-4000, 2-4x",
        "ms per batch": "50-100 → 15-30, 3-5x",
    },
    "plan_a": {"samples/s": "2-3x"},
    "plan_b": {"samples/s": "4-5x"},
    "plan_c": {"samples/s": "16x with 8 GPUs"},
}
_READ: tuple[tuple[str, Callable[[Measurement], Reading], Unit], ...] = (
    ("GPU power", derive.watts, Unit(suffix="W", significant=3)),
    ("power ÷ limit", derive.power_share, PERCENT),
    ("utilization", derive.utilization, PERCENT),
    ("peak memory", lambda side: side.peak_bytes, BYTES),
)
HEADERS = ("", "before", "after", "factor (99 % interval)")
Row = tuple[str, ...]  # one cell for each header


def before_after(record: OptimizeRecord, outcomes: Sequence[Outcome]) -> list[str]:
    """Both sides of each experiment ran in the same blocks."""
    whole = combined(record, outcomes)
    return [block for each in whole for block in _both_sides(record, outcomes, each)]


def _both_sides(record: OptimizeRecord, outcomes: Sequence[Outcome], whole: Outcome) -> list[str]:
    change = whole.comparison
    reason = f": {whole.reason}" if whole.reason else ""
    said = f"{change.before_text} → {change.after_text}. {whole.verdict}{reason}."
    # Where the answers change on purpose nothing is faster, but the time is known.
    speedup = time_ratio(change) if whole.timed is None else whole.timed.speedup
    if speedup is None or change.before is None or change.after is None:
        return [prose(said)]
    sides = change.before, change.after
    rows = _speeds(whole, sides, speedup, _batch_sizes(record, outcomes))
    unknown: dict[str, list[str]] = {}
    for name, read, unit in _READ:
        first, second = (read(side) for side in sides)
        if first.value is None or second.value is None:
            unknown.setdefault(first.reason or second.reason, []).append(name)
        else:
            rows.append(_row(name, first.value, second.value, unit))
    if waits := waiting_shares(change):
        rows.append(_row("waiting for data", *waits, PERCENT))
    published = PUBLISHED.get(change.key) or PUBLISHED.get(record.workload.name, {})
    columns: list[Column[Row]] = [
        *(_column(at, header) for at, header in enumerate(HEADERS)),
        Column("as published", lambda row: published.get(row[0])),
    ]
    if unknown:
        left = [f"{', '.join(names)} ({reason})" for reason, names in unknown.items()]
        said += f" Not measured: {'; '.join(left)}."
    return [prose(said), *table(rows, columns)]


def _speeds(
    whole: Outcome,
    sides: Sequence[Measurement],
    speedup: Interval,
    batch_sizes: Sequence[float],
) -> list[Row]:
    """What has an interval. Its factor was paired by block, so it is not that of the two values."""
    rows: list[Row] = []

    def add(name: str, values: Iterable[Interval], unit: Unit, factor: Interval = speedup) -> None:
        rows.append((name, *map(unit.write, values), TIMES.write(factor)))

    scope, seconds = whole.comparison.scope, [derive.step_seconds(side) for side in sides]
    if scope == STEP:
        add("it/s", [each.map(lambda value: 1 / value) for each in seconds], PLAIN)
    else:
        add(f"s per {scope}", seconds, PLAIN)
    of_sample = [
        scale(each, 1 / side.samples_per_step)
        for each, side in zip(seconds, sides, strict=True)
        if side.samples_per_step
    ]
    if len(of_sample) == len(sides):
        add("samples/s", [each.map(lambda value: 1 / value) for each in of_sample], PLAIN)
        if batch_sizes:
            factor = scale(speedup, batch_sizes[0] / batch_sizes[1])
            of_batch = [scale(*each) for each in zip(of_sample, batch_sizes, strict=True)]
            add("ms per batch", of_batch, MILLISECONDS, factor)
    return rows


def _row(name: str, before: float, after: float, unit: Unit) -> Row:
    factor = TIMES.write(after / before) if before else ""
    return name, unit.write(before), unit.write(after), factor


def _column(at: int, header: str) -> Column[Row]:
    return Column(header, lambda row: row[at])


def _batch_sizes(record: OptimizeRecord, outcomes: Sequence[Outcome]) -> tuple[float, ...]:
    """As it was, and with the last change on the ladder that says another; empty without any."""
    steps = climb(record)
    known = [each.comparison for each in outcomes if fact_of(each.comparison, "after_batch_size")]
    if not known or not steps:
        return ()
    first = size = fact_of(known[0], "before_batch_size") or 1.0
    for step in steps:
        change = find(outcomes, step.comparison.key)
        size = (change and fact_of(change.comparison, "after_batch_size")) or size
    return first, size
