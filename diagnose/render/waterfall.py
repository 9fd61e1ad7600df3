"""From one time to another: what lies between? Bars that each begin where the last one ended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from diagnose.analyze.units import number
from diagnose.records.stats import Interval
from diagnose.render.figures import BLUE, FAINT, GREEN, ORANGE, Bar, draw_bars

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Less than this share of the longest bar is below the width of a line.
_VISIBLE = 0.005
# Of the axis, beyond the longest bar: room for a number with its unit.
_ROOM = 1.5
UNEXPLAINED = "not explained"


@dataclass(frozen=True)
class Step:
    """A whole bar (start, end), or what a step adds to where the one before ended; in ms."""

    label: str
    value: float
    certain: bool = True  # an uncertain one is hatched
    interval: Interval | None = None  # of the value
    color: str = ""


def waterfall(start: Step, steps: Sequence[Step], end: Step) -> Figure:
    """Start, steps and end from top to bottom; steps that do not add up leave a grey rest."""
    listed = list(steps)
    rest = end.value - start.value - sum(each.value for each in listed)
    if abs(rest) > _VISIBLE * max(start.value, end.value):
        listed.append(Step(UNEXPLAINED, rest, color=FAINT))
    bars, at = [_bar(start, 0.0)], start.value
    for each in listed:
        bars.append(_bar(each, at, is_step=True))
        at += each.value
    bars.append(_bar(end, 0.0))
    notes = ["ms per step"]
    if any(bar.interval for bar in bars):
        notes.append("lines: 95 % intervals")
    if any(bar.uncertain for bar in bars):
        notes.append("hatched: not proven")
    return draw_bars(bars, "; ".join(notes), _ROOM)


def _bar(step: Step, start: float, *, is_step: bool = False) -> Bar:
    sign = "+" if is_step and step.value > 0 else ""
    color = BLUE
    if is_step:
        color = GREEN if step.value <= 0 else ORANGE
    ends = None if step.interval is None else step.interval.ends
    return Bar(
        name=step.label,
        width=step.value,
        text=f"{sign}{number(step.value)} ms",
        color=step.color or color,
        start=start,
        interval=None if ends is None else (start + ends[0], start + ends[1]),
        uncertain=not step.certain,
    )
