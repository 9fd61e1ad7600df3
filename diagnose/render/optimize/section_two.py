"""What do all changes of the small model bring? Before, after and factor, as in its guide."""

from __future__ import annotations

from collections.abc import Sequence

from diagnose.analyze import derive
from diagnose.analyze.optimize.effects import fact_of, find
from diagnose.analyze.optimize.experiment import Outcome
from diagnose.analyze.optimize.ladder import LadderStep, climb
from diagnose.analyze.units import BYTES, MILLISECONDS, PERCENT, TIMES, Unit, scale
from diagnose.records.experiments import OptimizeRecord
from diagnose.records.stats import Interval
from diagnose.render.table import Cell, Column, table

_RATE = Unit(significant=4)
_SECONDS = Unit(significant=3)
Row = tuple[Cell, ...]


def before_after_factor(record: OptimizeRecord, outcomes: Sequence[Outcome]) -> list[str]:
    """The job as it was against the last step of the ladder, which ran in the same blocks."""
    steps = climb(record, outcomes)
    if not steps:
        return []
    last = steps[-1]
    before, after = last.outcome.comparison.before, last.outcome.comparison.after
    assert before is not None  # a step without both sides has no speed-up
    assert after is not None
    sides = (before, after)
    samples = before.samples_per_step or 1
    epochs = [derive.step_seconds(each) for each in sides]
    sizes = _batch_sizes(steps, outcomes)
    rows: list[Row] = []

    def add(
        name: str,
        values: Sequence[Interval | float],
        factor: Interval | float,
        expected: str,
        unit: Unit,
    ) -> None:
        rows.append((name, *map(unit.write, values), TIMES.write(factor), expected))

    def read(name: str, values: Sequence[float | None], expected: str, unit: Unit) -> None:
        """What was read or counted once, where it was."""
        first, second = values
        if first and second is not None:
            add(name, (first, second), second / first, expected, unit)

    used = [derive.utilization(each).value for each in sides]
    read("utilization", used, "20-40 % → 70-90 %, 2-3x", PERCENT)
    read("waiting for data", _waiting(steps, outcomes), "", PERCENT)
    rates = [each.map(lambda seconds: samples / seconds) for each in epochs]
    add("samples/s", rates, last.together, "500-1000 → 2000-4000, 2-4x", _RATE)
    if sizes is not None:
        of_batch = [scale(each, size / samples) for each, size in zip(epochs, sizes, strict=True)]
        factor = scale(last.together, sizes[0] / sizes[1])
        add("ms per batch", of_batch, factor, "50-100 → 15-30 ms, 3-5x", MILLISECONDS)
    add("s per epoch", epochs, last.together, "", _SECONDS)
    read("peak memory", [each.peak_bytes.value for each in sides], "", BYTES)
    headers = ("all changes together", "before", "after", "factor", "the guide expected")
    return table(rows, [_column(at, header) for at, header in enumerate(headers)])


def _column(at: int, header: str) -> Column[Row]:
    return Column(header, lambda row: row[at])


def _batch_sizes(
    steps: Sequence[LadderStep], outcomes: Sequence[Outcome]
) -> tuple[float, float] | None:
    """Of the job as it was, and with the last change that says another; None if none was tried."""
    known = [each.comparison for each in outcomes if fact_of(each.comparison, "after_batch_size")]
    if not known:
        return None
    first = size = fact_of(known[0], "before_batch_size") or 1.0
    for step in steps:
        change = find(outcomes, step.added)
        size = (change and fact_of(change.comparison, "after_batch_size")) or size
    return first, size


def _waiting(steps: Sequence[LadderStep], outcomes: Sequence[Outcome]) -> list[float | None]:
    """The share of an epoch, as it was and with the change of the loader, if it is among them."""
    name = "{}_data_wait_share"
    known = [each.comparison for each in outcomes if name.format("before") in each.comparison.facts]
    first = fact_of(known[0], name.format("before")) if known else None
    last = first
    for step in steps:
        change = find(outcomes, step.added)
        found = None if change is None else fact_of(change.comparison, name.format("after"))
        last = last if found is None else found
    return [first, last]
