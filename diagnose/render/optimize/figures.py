"""What do the launch map and the ladder look like?"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from diagnose.analyze.optimize.experiment import Outcome
from diagnose.analyze.optimize.ladder import climb
from diagnose.analyze.optimize.launches import launches, place, share, span, whole
from diagnose.analyze.units import TIMES, percent
from diagnose.records.experiments import LaunchMap, OptimizeRecord
from diagnose.records.stats import Interval
from diagnose.render.figures import BLUE, GREEN, ORANGE, Bar, draw_bars, label, new_axes
from diagnose.render.markdown import clean

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LAUNCHES, LADDER = "launches.svg", "ladder.svg"
MOST_BARS = 8
# The end of a path says more than its beginning.
_LONGEST_LABEL = 40


def figures(record: OptimizeRecord) -> Mapping[str, Callable[[], Figure]]:
    """The figures that this record supports."""
    found: dict[str, Callable[[], Figure]] = {}
    if record.maps:
        found[LAUNCHES] = functools.partial(draw_launches, record.maps[0])
    steps = climb(record)
    if steps:
        found[LADDER] = functools.partial(draw_ladder, steps)
    return found


def draw_launches(of: LaunchMap) -> Figure:
    """One bar per line, forward and backward apart, most launches first."""
    lines = of.lines[:MOST_BARS]
    figure, axes = new_axes(1.4 + 0.42 * len(lines))
    places = range(len(lines))
    forward = [line.forward for line in lines]
    axes.barh(places, forward, height=0.62, color=BLUE, label="forward, optimizer")
    backward = [line.backward for line in lines]
    if any(backward):
        axes.barh(places, backward, height=0.62, left=forward, color=ORANGE, label="backward")
        axes.legend(loc="lower right", frameon=False)
    longest = max((launches(line) for line in lines), default=1)
    for at, line in enumerate(lines):
        text = f"{whole(launches(line))} ({percent(share(line, of))})"
        if line.trips > 1:
            text += f", runs {whole(line.trips)}x"
        axes.text(launches(line) + 0.015 * longest, at, text, va="center")
    axes.set_yticks(places, [_shorten(place(line)) for line in lines])
    axes.tick_params(axis="y", length=0)
    axes.set_xlim(0, 1.45 * max(longest, 1))
    axes.set_ylim(len(lines) - 0.4, -0.6)
    axes.set_xlabel(f"launches of one {span(of)}, {whole(of.launches)} in all")
    return figure


def draw_ladder(steps: Sequence[Outcome]) -> Figure:
    """How many times as fast as the base, which ran in the blocks of every step."""
    bars = [_ladder_bar(step, step.timed.speedup) for step in steps if step.timed is not None]
    scope = label(steps[0].comparison.scope)
    note = "; hatched: not proven" if any(bar.uncertain for bar in bars) else ""
    axis = f"{scope}: times as fast as it was; lines: 99 % intervals{note}"
    return draw_bars([Bar("as it was", 1.0, "1"), *bars], axis)


def _ladder_bar(step: Outcome, speedup: Interval) -> Bar:
    return Bar(
        name=f"+ {step.comparison.key}",
        width=speedup.center,
        text=TIMES.write(speedup.center),
        color=GREEN if speedup.center >= 1 else ORANGE,
        interval=speedup.ends,
        uncertain=step.verdict not in ("FASTER", "SLOWER"),
    )


def _shorten(text: str) -> str:
    text = clean(text)
    return text if len(text) <= _LONGEST_LABEL else "…" + text[1 - _LONGEST_LABEL :]
