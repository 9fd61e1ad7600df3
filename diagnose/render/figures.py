"""How does a figure become an SVG whose bytes depend on the record alone?

Nothing here imports the plotting library before something is drawn: `check` asks which figures a
record has, on machines that cannot draw them.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from diagnose.render import seal
from diagnose.render.markdown import clean

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's palette: distinct under every common colour blindness.
BLUE, ORANGE, GREEN, PURPLE, SKY = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9"
LINES = (BLUE, ORANGE, GREEN, PURPLE, SKY)
INK, FAINT = "#333333", "#999999"
_LONGEST_LABEL = 60

_STYLE: dict[str, Any] = {
    # Text stays text: small files, and a diff that can be read.
    "svg.fonttype": "none",
    "svg.hashsalt": "diagnose",
    # A dollar sign in a name is no formula.
    "text.parse_math": False,
    "font.family": ["DejaVu Sans"],
    "font.size": 10,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": FAINT,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 11,
    "axes.titlelocation": "left",
    "xtick.color": INK,
    "ytick.color": INK,
    "figure.facecolor": "white",
}


def draw(figure: Callable[[], Figure], fingerprint: str) -> bytes:
    """The same figure gives the same bytes everywhere, sealed with the record's fingerprint."""
    import matplotlib as mpl

    description = seal.unsealed(fingerprint)
    metadata: Any = {"Description": description, "Date": None, "Creator": None}
    buffer = io.BytesIO()
    with mpl.rc_context({**mpl.rcParamsDefault, **_STYLE}):
        figure().savefig(buffer, format="svg", metadata=metadata, bbox_inches="tight")
    return seal.seal(buffer.getvalue())


def new_axes(height: float) -> tuple[Figure, Axes]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.5, height), layout="constrained")
    return figure, figure.add_subplot()


def label(text: str) -> str:
    """Text from anywhere, short enough for a figure and without control characters."""
    return clean(text)[:_LONGEST_LABEL]


@dataclass(frozen=True)
class Bar:
    """One horizontal bar: its name at the axis, its text behind its end."""

    name: str
    width: float | None  # None where there is nothing to draw but the text
    text: str
    color: str = BLUE
    start: float = 0.0  # a bar of a waterfall begins where the one above it ended
    interval: tuple[float, float] | None = None
    uncertain: bool = False  # hatched: its interval allows no change at all


def draw_bars(bars: Sequence[Bar], axis: str, room: float = 1.25) -> Figure:
    """Bars from top to bottom; `room` is the space for their texts, as a share of the longest."""
    figure, axes = new_axes(1.1 + 0.42 * len(bars))
    ends = [_ends(bar) for bar in bars]
    longest = max((high for _, high in ends), default=0.0) or 1.0
    for place, (bar, (_, end)) in enumerate(zip(bars, ends, strict=True)):
        if bar.width is None:
            axes.text(0, place, f" {label(bar.text)}", va="center", color=FAINT)
            continue
        style: dict[str, Any] = {"color": bar.color}
        if bar.uncertain:
            style = {"facecolor": "white", "edgecolor": bar.color, "hatch": "///"}
        axes.barh(place, bar.width, left=bar.start, height=0.62, **style)
        if bar.interval is not None:
            axes.plot(bar.interval, [place, place], color=INK, linewidth=1.5)
        axes.text(end + 0.015 * longest, place, label(bar.text), va="center")
    axes.set_yticks(range(len(bars)), [label(bar.name) for bar in bars])
    axes.tick_params(axis="y", length=0)
    axes.set_xlim(min([0.0, *(low for low, _ in ends)]), room * longest)
    axes.set_ylim(len(bars) - 0.4, -0.6)
    axes.set_xlabel(axis)
    return figure


def _ends(bar: Bar) -> tuple[float, float]:
    places = [bar.start, bar.start + (bar.width or 0.0), *(bar.interval or ())]
    return min(places), max(places)


def label_ends(axes: Axes, ends: Sequence[tuple[float, str, str]]) -> None:
    """Names beside the ends of the lines, pushed apart where lines end together."""
    to_axes = axes.transData + axes.transAxes.inverted()
    lowest = -1.0
    for value, text, color in sorted(ends):
        height = max(float(to_axes.transform((0, value))[1]), lowest + 0.065)
        axes.text(1.01, height, label(text), color=color, va="center", transform=axes.transAxes)
        lowest = height
