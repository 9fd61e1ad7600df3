"""What do the launch map and the ladder look like?"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from diagnose.analyze import derive
from diagnose.analyze.optimize.experiment import judge_all
from diagnose.analyze.optimize.ladder import LadderStep, climb
from diagnose.analyze.optimize.launches import launches, place, share, span, whole
from diagnose.analyze.units import number, percent
from diagnose.records.experiments import LaunchMap, OptimizeRecord
from diagnose.render.figures import BLUE, ORANGE, label, new_axes
from diagnose.render.markdown import clean
from diagnose.render.waterfall import Step, waterfall

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
    steps = climb(record, judge_all(record))
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


def draw_ladder(steps: Sequence[LadderStep]) -> Figure:
    """Milliseconds: as it was, what each change takes away, and what is left.

    Every step was held against the base in its own blocks, so its time is that of the base
    divided by its speed-up: the drift of the machine from step to step cancels.
    """
    base = steps[0].outcome.comparison.before
    assert base is not None  # a step without it has no speed-up
    start = 1e3 * derive.step_seconds(base).center
    bars, end = [], start
    for step in steps:
        bars.append(_ladder_bar(step, start, end))
        end += bars[-1].value
    last = steps[-1]
    reached = last.together.map(lambda ratio: start / ratio)
    return waterfall(
        Step("as it was", start),
        bars,
        Step("all together", end, last.is_proven, reached),
        axis=f"ms per {label(last.outcome.comparison.scope)}",
        level="99 %",
    )


def _ladder_bar(step: LadderStep, start: float, end: float) -> Step:
    change = step.together.map(lambda ratio: start / ratio - end)
    remark = f"{number(step.together.center, 3)}x so far"
    return Step(f"+ {step.added}", change.center, step.is_proven, change, remark=remark)


def _shorten(text: str) -> str:
    text = clean(text)
    return text if len(text) <= _LONGEST_LABEL else "…" + text[1 - _LONGEST_LABEL :]
