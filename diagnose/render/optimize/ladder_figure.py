"""What does the ladder look like? A waterfall: each change begins where the one before ended."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure

from diagnose.analyze import derive
from diagnose.analyze.optimize.ladder import Rung
from diagnose.analyze.units import number
from diagnose.render.figures import BLUE, GREEN, ORANGE
from diagnose.render.markdown import clean

_INK = "#333333"
_LONGEST_LABEL = 30


def draw_ladder(rungs: Sequence[Rung]) -> Figure:
    """Milliseconds per epoch: as it was, what each change takes away, and what is left.

    Every rung was held against the base in its own blocks, so its time is that of the base
    divided by its speed-up: the drift of the machine from rung to rung cancels.
    """
    base = rungs[0].outcome.comparison.before
    assert base is not None  # a rung without it has no speed-up
    start = 1e3 * derive.step_seconds(base).center
    rows = [("as it was", 0.0, start, BLUE)]
    end = start
    for rung in rungs:
        reached = start / rung.together.center
        color = GREEN if reached <= end else ORANGE
        rows.append((f"+ {rung.added}", end, reached - end, color))
        end = reached
    rows.append(("all together", 0.0, end, BLUE))
    figure = Figure(figsize=(7.5, 1.2 + 0.42 * len(rows)), layout="constrained")
    axes = figure.add_subplot()
    longest = max(max(left, left + width) for _, left, width, _ in rows)
    for place, (_, left, width, color) in enumerate(rows):
        axes.barh(place, width, left=left, height=0.62, color=color)
        at = max(left, left + width) + 0.015 * longest
        change = 0 < place < len(rows) - 1
        text = f"{'+' if change and width > 0 else ''}{number(width)} ms"
        if change:
            text += f", {number(rungs[place - 1].together.center, 3)}x so far"
        axes.text(at, place, text, va="center", color=_INK)
    axes.set_yticks(range(len(rows)), [clean(name)[:_LONGEST_LABEL] for name, *_ in rows])
    axes.tick_params(axis="y", length=0)
    axes.set_xlim(0, 1.35 * longest)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    scope = clean(rungs[0].outcome.comparison.scope)[:_LONGEST_LABEL]
    axes.set_xlabel(f"ms per {scope}; each change begins where the one above it ended")
    return figure
