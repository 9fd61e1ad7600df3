"""What does each change bring alone, and on top of the ones before? The ladder, and its sums.

Every figure of a row comes from one timer: both sides ran in the same blocks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from diagnose.analyze import derive
from diagnose.analyze.optimize.effects import find
from diagnose.analyze.optimize.experiment import Outcome, judge_family
from diagnose.analyze.units import milliseconds, number, percent, scaled, spread
from diagnose.records.experiments import OptimizeRecord
from diagnose.records.header import Reading
from diagnose.records.run import Measurement
from diagnose.records.stats import Interval
from diagnose.render.markdown import Align, Footnotes, Markup, escape, prose, table

FIGURE_NAME = "ladder.svg"
_FIGURES = ("utilisation", "samples/s", "ms per epoch", "peak memory")


@dataclass(frozen=True)
class Rung:
    """One change more on top of the ones before. Speed-ups are ratios: 2.0 is twice as fast."""

    added: str
    outcome: Outcome
    together: Interval  # of the base with all changes up to this one, against the base
    alone: Interval | None  # of this change by itself
    more: Interval  # of this rung against the one before


@dataclass(frozen=True)
class Interaction:
    """The changes multiplied, as if they had nothing in common, against what they bring."""

    product: Interval
    together: Interval

    @property
    def verdict(self) -> str:
        share = over(self.together, self.product)
        if share.low is None or share.high is None:
            return "whether they overlap is not decided"
        if share.high < 1:
            return "they overlap: the same time cannot be saved twice"
        if share.low > 1:
            return "they help each other: one opens the way for the other"
        return "they do not hinder each other as far as the intervals tell"


def judge_rungs(record: OptimizeRecord) -> tuple[Outcome, ...]:
    """The rungs are a family of their own: none of them tries a change that others also try."""
    return judge_family(record.rungs, record.header.machine)


def climb(record: OptimizeRecord, outcomes: Sequence[Outcome]) -> list[Rung]:
    """The rungs that were timed, with the same change alone."""
    rungs: list[Rung] = []
    before = Interval(1.0, 1.0, 1.0)
    for each in judge_rungs(record):
        if each.timed is None:
            continue
        together = each.timed.speedup
        single = find(outcomes, each.comparison.key, each.comparison.scope)
        rungs.append(
            Rung(
                added=each.comparison.key,
                outcome=each,
                together=together,
                alone=None if single is None or single.timed is None else single.timed.speedup,
                more=over(together, before),
            )
        )
        before = together
    return rungs


def interaction(rungs: Sequence[Rung]) -> Interaction | None:
    """None where there is nothing to multiply, or a change has no speed-up of its own."""
    alone = [each.alone for each in rungs if each.alone is not None]
    if len(rungs) < 2 or len(alone) < len(rungs):
        return None
    return Interaction(multiply(alone), rungs[-1].together)


def multiply(factors: Sequence[Interval]) -> Interval:
    """The ends multiplied, as if all were at theirs at once: wider than need be, never narrower."""
    lows = [each.low for each in factors if each.low is not None]
    highs = [each.high for each in factors if each.high is not None]
    known = len(lows) == len(highs) == len(factors)
    return Interval(
        math.prod(each.center for each in factors),
        math.prod(lows) if known else None,
        math.prod(highs) if known else None,
    )


def ladder_lines(record: OptimizeRecord, outcomes: Sequence[Outcome]) -> list[str]:
    """Both tables, the figure and the sums."""
    rungs = climb(record, outcomes)
    blocks = [
        "### Each change alone",
        *_alone_table(record, outcomes),
        "### One on top of the other",
    ]
    if not rungs:
        return [
            *blocks,
            "No change is certain to gain, so nothing was put together.",
            *_lost(record),
        ]
    blocks += [*_together_table(rungs), *_lost(record)]
    blocks.append(f"![epoch time, one change after the other]({FIGURE_NAME})")
    return [*blocks, _sum(rungs)]


def figure_names(record: OptimizeRecord) -> tuple[str, ...]:
    return (FIGURE_NAME,) if any(each.timed for each in judge_rungs(record)) else ()


def _alone_table(record: OptimizeRecord, outcomes: Sequence[Outcome]) -> list[str]:
    scopes = {each.scope for each in record.rungs if each.scope} or {"training epoch"}
    notes, rows = Footnotes(), []
    for each in outcomes:
        before, after = each.comparison.before, each.comparison.after
        if each.timed is None or each.comparison.scope not in scopes or not before or not after:
            continue
        pairs = [
            _arrow(first, second)
            for first, second in zip(_figures(before, notes), _figures(after, notes), strict=True)
        ]
        gain = f"{spread(each.timed.speedup)}x"
        rows.append([each.name, gain, each.verdict, *pairs])
    if not rows:
        return ["No single change was timed."]
    headers = ["change", Markup("speed-up [95 % interval]"), "verdict", *_FIGURES]
    align: tuple[Align, ...] = ("left", "right", "left", *("right",) * 4)
    return [table(headers, rows, align), *_lines(notes)]


def _together_table(rungs: Sequence[Rung]) -> list[str]:
    notes = Footnotes()
    rows: list[list[str]] = []
    first = rungs[0].outcome.comparison.before
    if first is not None:
        rows.append(["as it was", "1", "", "", "", *_figures(first, notes)])
    for each in rungs:
        after = each.outcome.comparison.after
        assert after is not None  # a rung without it has no speed-up
        alone = notes.missing("not timed alone") if each.alone is None else spread(each.alone)
        rows.append(
            [
                f"+ {each.added}",
                f"{spread(each.together)}x",
                each.outcome.verdict,
                f"{spread(each.more)}x",
                alone if isinstance(alone, Markup) else f"{alone}x",
                *_figures(after, notes),
            ]
        )
    headers = [
        "changes so far",
        Markup("all of them [95 % interval]"),
        "verdict",
        "this one on top",
        "this one alone",
        *_FIGURES,
    ]
    align: tuple[Align, ...] = ("left", "right", "left", *("right",) * 6)
    return [table(headers, rows, align), *_lines(notes)]


def _figures(side: Measurement, notes: Footnotes) -> list[str]:
    """Utilisation, samples per second, epoch time, memory."""
    rate, peak = derive.samples_per_second(side), side.peak_bytes
    return [
        _cell(derive.utilization(side), percent, notes),
        _cell(rate, number, notes),
        milliseconds(derive.step_seconds(side)),
        _cell(peak, lambda nbytes: scaled(nbytes, "B"), notes),
    ]


def _cell(reading: Reading, write: Callable[[float], str], notes: Footnotes) -> str:
    return notes.missing(reading.reason) if reading.value is None else write(reading.value)


def _arrow(first: str, second: str) -> str:
    if first == second:
        return first
    text = f"{first if isinstance(first, Markup) else prose(first)} → "
    return Markup(text + (second if isinstance(second, Markup) else prose(second)))


def _sum(rungs: Sequence[Rung]) -> str:
    found = interaction(rungs)
    if found is None:
        return "There is one change on the ladder, so nothing can interact."
    text = (
        f"Multiplied, the single gains would be {spread(found.product)}x; together they are "
        f"{spread(found.together)}x: {found.verdict}."
    )
    return prose(text)


def _lost(record: OptimizeRecord) -> list[str]:
    lines = [
        f"- {escape(each.comparison.key)} on top: {each.verdict}. {prose(each.reason)}"
        for each in judge_rungs(record)
        if each.timed is None
    ]
    return ["\n".join(lines)] if lines else []


def over(above: Interval, below: Interval) -> Interval:
    """Both were measured against the base, but not in the same blocks: the ends add up."""
    center = above.center / below.center
    if above.low is None or above.high is None or not below.low or not below.high:
        return Interval(center, None, None)
    return Interval(center, above.low / below.high, above.high / below.low)


def _lines(notes: Footnotes) -> list[str]:
    return ["\n".join(notes.lines())] if notes.lines() else []
