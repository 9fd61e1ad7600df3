"""What does the loss look like? The ledger as a bar that grows, line by line, to the whole step."""

from __future__ import annotations

import functools

from matplotlib.figure import Figure

from diagnose.analyze import derive
from diagnose.analyze.scaling.ledger import (
    COMMUNICATION,
    COMPUTE,
    INPUT,
    SHORTFALL,
    TRANSFER,
    WAITING,
    Ledger,
    build_ledger,
)
from diagnose.analyze.units import number
from diagnose.records.ranks import ScalingRecord
from diagnose.render.figures import BLUE, GREEN, ORANGE, PURPLE, SKY, save_figure
from diagnose.render.scaling.report import FIGURE_NAME

_INK, _GREY = "#333333", "#999999"
_COLORS = {
    COMPUTE: SKY,
    INPUT: GREEN,
    WAITING: PURPLE,
    COMMUNICATION: ORANGE,
    TRANSFER: ORANGE,
    SHORTFALL: ORANGE,
}


def scaling_figures(record: ScalingRecord) -> dict[str, bytes]:
    """The figure by its file name; none without a ledger."""
    ledger = build_ledger(record)
    if ledger is None:
        return {}
    draw = functools.partial(draw_ledger, ledger)
    return {FIGURE_NAME: save_figure(draw, derive.fingerprint(record))}


def draw_ledger(ledger: Ledger) -> Figure:
    """Each loss begins where the one before it ended; a negative one leads back."""
    rows = [
        ("one rank alone", 0.0, 1e3 * ledger.alone.center, BLUE),
    ]
    end = rows[0][2]
    for loss in ledger.losses:
        milliseconds = 1e3 * loss.cost.seconds.center
        rows.append((loss.name, end, milliseconds, _COLORS.get(loss.name, _GREY)))
        end += milliseconds
    rows.append((f"{ledger.ranks} ranks together", 0.0, 1e3 * ledger.together.center, BLUE))
    figure = Figure(figsize=(7.5, 1.2 + 0.42 * len(rows)), layout="constrained")
    axes = figure.add_subplot()
    longest = max(start + max(0.0, width) for _, start, width, _ in rows)
    for place, (_, start, width, color) in enumerate(rows):
        axes.barh(place, width, left=start, height=0.62, color=color)
        sign = "+" if 0 < place < len(rows) - 1 and width >= 0 else ""
        at = max(start, start + width) + 0.015 * longest
        axes.text(at, place, f"{sign}{number(width)} ms", va="center", color=_INK)
    axes.set_yticks(range(len(rows)), [name for name, *_ in rows])
    axes.tick_params(axis="y", length=0)
    axes.set_xlim(min(0.0, *(start + width for _, start, width, _ in rows)), 1.2 * longest)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_xlabel("ms per step; each loss begins where the one above it ended")
    return figure
