"""Does it still learn as well? The losses of both sides, at equal numbers of samples."""

from __future__ import annotations

from collections.abc import Sequence

from diagnose.analyze.optimize.experiment import Outcome
from diagnose.analyze.units import number, percent
from diagnose.render.markdown import prose, table

# So many points of a curve fit beside each other: the beginning, the end, and those between.
MOST_POINTS = 5


def curve_lines(outcomes: Sequence[Outcome]) -> list[str]:
    """One table per change whose numerics may differ, with the difference in a sentence."""
    blocks, seen = [], set()
    for each in outcomes:
        curves = each.comparison.curves
        # Every scope of a change carries the same curves.
        if each.comparison.key in seen or len(curves) < 2:
            continue
        seen.add(each.comparison.key)
        (first, before), *_, (last, after) = curves.items()
        count = min(len(before), len(after))
        if count == 0:
            continue
        points = _points(count)
        rows = [
            [name, *(number(losses[at]) for at in points)]
            for name, losses in ((first, before), (last, after))
        ]
        headers = ["loss", *(f"{percent((at + 1) / count)} of the samples" for at in points)]
        blocks += [
            f"### {prose(each.name)}",
            table(headers, rows),
            prose(_difference(first, before[count - 1], last, after[count - 1])),
        ]
    return blocks


def _points(count: int) -> list[int]:
    if count <= MOST_POINTS:
        return list(range(count))
    return [round(step * (count - 1) / (MOST_POINTS - 1)) for step in range(MOST_POINTS)]


def _difference(first: str, before: float, last: str, after: float) -> str:
    text = f"At the end the loss of {last} is {number(after)}, that of {first} {number(before)}"
    if before:
        change = after / before - 1
        text += f": {'+' if change > 0 else ''}{percent(change)}"
    return f"{text}. One seed, so a small difference is no verdict."
