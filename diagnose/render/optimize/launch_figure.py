"""What does the launch map look like? One bar per line, forward and backward apart."""

from __future__ import annotations

from matplotlib.figure import Figure

from diagnose.analyze.optimize.launches import launches, place, share, whole
from diagnose.analyze.units import percent
from diagnose.records.experiments import LaunchMap
from diagnose.render.figures import BLUE, ORANGE
from diagnose.render.markdown import clean

MOST_BARS = 8
# The end of a path says more than its beginning.
_LONGEST_LABEL = 40


def draw_launches(map: LaunchMap) -> Figure:  # noqa: A002 - the name of what it is
    """The lines with the most launches, most first."""
    lines = map.lines[:MOST_BARS]
    figure = Figure(figsize=(7.5, 1.4 + 0.42 * len(lines)), layout="constrained")
    axes = figure.add_subplot()
    places = range(len(lines))
    forward = [line.forward for line in lines]
    axes.barh(places, forward, height=0.62, color=BLUE, label="forward, optimizer")
    backward = [line.backward for line in lines]
    axes.barh(places, backward, height=0.62, left=forward, color=ORANGE, label="backward")
    longest = max((launches(line) for line in lines), default=1)
    for at, line in enumerate(lines):
        text = f"{whole(launches(line))} ({percent(share(line, map))})"
        if line.trips > 1:
            text += f", runs {whole(line.trips)}x"
        axes.text(launches(line) + 0.015 * longest, at, text, va="center")
    axes.set_yticks(places, [_shorten(place(line)) for line in lines])
    axes.tick_params(axis="y", length=0)
    axes.set_xlim(0, 1.45 * max(longest, 1))
    axes.set_ylim(len(lines) - 0.4, -0.6)
    axes.set_xlabel(f"launches of one training step, {whole(map.launches)} in all")
    axes.legend(loc="lower right", frameon=False)
    return figure


def _shorten(text: str) -> str:
    text = clean(text)
    return text if len(text) <= _LONGEST_LABEL else "…" + text[1 - _LONGEST_LABEL :]
