"""What do the numbers look like? Three figures, as SVG whose bytes depend on the record alone.

Each file carries the fingerprint of its record and a hash of itself, so a figure that was left
behind or edited can be told.
"""

from __future__ import annotations

import functools
import io
from collections.abc import Callable
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from diagnose.analyze import derive
from diagnose.analyze.units import number
from diagnose.records.run import RunRecord
from diagnose.render import seal
from diagnose.render.markdown import clean
from diagnose.render.run import frames

# Okabe and Ito's palette: distinct under every common colour blindness.
BLUE, ORANGE, GREEN, PURPLE, SKY = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9"
_LINES = (BLUE, ORANGE, GREEN, PURPLE, SKY)
_INK, _FAINT = "#333333", "#999999"
# From here on a linear axis would press the smaller values into one line.
_LOG_FROM_RATIO = 8

_STYLE: dict[str, Any] = {
    # Text stays text: small files, and a diff that can be read.
    "svg.fonttype": "none",
    "svg.hashsalt": "diagnose",
    # A dollar sign in a name is no formula.
    "text.parse_math": False,
    "font.family": ["DejaVu Sans"],
    "font.size": 10,
    "text.color": _INK,
    "axes.labelcolor": _INK,
    "axes.edgecolor": _FAINT,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 11,
    "axes.titlelocation": "left",
    "xtick.color": _INK,
    "ytick.color": _INK,
    "figure.facecolor": "white",
}


def figures(record: RunRecord) -> dict[str, bytes]:
    """Every figure that the record supports, by file name."""
    fingerprint = derive.fingerprint(record)
    return {
        name: save_figure(functools.partial(_DRAW[name], record), fingerprint)
        for name in derive.figure_names(record)
    }


def save_figure(draw: Callable[[], Figure], fingerprint: str) -> bytes:
    """The same figure gives the same bytes everywhere, sealed with the record's fingerprint."""
    description = seal.unsealed(fingerprint)
    metadata: Any = {"Description": description, "Date": None, "Creator": None}
    buffer = io.BytesIO()
    with mpl.rc_context({**mpl.rcParamsDefault, **_STYLE}):
        draw().savefig(buffer, format="svg", metadata=metadata, bbox_inches="tight")
    return seal.seal(buffer.getvalue())


def draw_stages(record: RunRecord) -> Figure:
    """One bar per stage in the order of the ladder, with its interval and its number."""
    frame = frames.stage_frame(record)
    rows = []
    for stage in record.stages:
        # Ceilings are no steps, and a stage that does not apply has no place in the ladder.
        if stage.key == "ceilings" or stage.status == "skipped":
            continue
        of_stage = frame[(frame["stage"] == stage.key) & (frame["role"] == "result")]
        timed = [row for _, row in of_stage.iterrows() if row["ms"] is not None]
        rows.append((stage, min(timed, key=lambda row: float(row["ms"]), default=None)))
    figure, axes = _figure(1.1 + 0.42 * len(rows))
    longest = max((row["ms_high"] or row["ms"] for _, row in rows if row is not None), default=1.0)
    for place, (stage, row) in enumerate(rows):
        if row is None:
            axes.text(0, place, f" {stage.status}", va="center", color=_FAINT)
            continue
        color = SKY if stage.key == "loader" else BLUE
        axes.barh(place, row["ms"], height=0.62, color=color)
        _whisker(axes, row, place)
        note = "" if stage.status == "done" else f" ({stage.status})"
        # A bar of another batch size must not be read against its neighbours.
        if row["batch_size"] != record.workload.settings.get("batch_size"):
            note += f" at batch {row['batch_size']}"
        text = f"{number(row['ms'])} ms{note}"
        axes.text((row["ms_high"] or row["ms"]) + 0.015 * longest, place, text, va="center")
    axes.set_yticks(range(len(rows)), [clean(stage.title)[:40] for stage, _ in rows])
    axes.tick_params(axis="y", length=0)
    axes.set_xlim(0, 1.25 * longest)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_xlabel("ms per step, with the 95 % interval (DataLoader: ms per batch)")
    return figure


def _whisker(axes: Axes, row: Any, place: float) -> None:
    if row["ms_low"] is not None:
        axes.plot([row["ms_low"], row["ms_high"]], [place, place], color=_INK, linewidth=1.5)


def draw_loader(record: RunRecord) -> Figure:
    """Milliseconds per batch by workers, one line per storage, against the time of a step."""
    frame = frames.loader_frame(record)
    figure, axes = _figure(3.6)
    workers = sorted(set(frame["workers"]), key=lambda count: (count is None, count))
    ends = []
    for index, series in enumerate(dict.fromkeys(frame["series"])):
        rows = [row for _, row in frame[frame["series"] == series].iterrows()]
        rows.sort(key=lambda row: workers.index(row["workers"]))
        places = [workers.index(row["workers"]) for row in rows]
        color = _LINES[index % len(_LINES)]
        axes.plot(places, [row["ms"] for row in rows], marker="o", markersize=4, color=color)
        for place, row in zip(places, rows, strict=True):
            if row["ms_low"] is not None:
                axes.vlines(place, row["ms_low"], row["ms_high"], color=color, linewidth=1.5)
        ends.append((rows[-1]["ms"], clean(series)[:40], color))
    values = [float(value) for value in frame["ms"]]
    # Without the pipeline in it: what the loader must keep up with.
    training = derive.result(record, "training")
    if training is not None:
        step = 1e3 * derive.step_seconds(training).center
        values.append(step)
        axes.axhline(step, color=_INK, linewidth=1, linestyle=(0, (4, 3)))
        ends.append((step, "one training step", _INK))
    if max(values) > _LOG_FROM_RATIO * min(values):
        axes.set_yscale("log")
        axes.set_ylim(0.6 * min(values), 1.7 * max(values))
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.yaxis.set_minor_formatter(lambda value, _: "")
        axes.set_ylabel("ms per batch (logarithmic)")
    else:
        axes.set_ylim(0, 1.15 * max(values))
        axes.set_ylabel("ms per batch")
    axes.set_xticks(range(len(workers)), [str(count) for count in workers])
    axes.set_xlim(-0.2, len(workers) - 0.8)
    axes.set_xlabel("loader workers")
    _label_ends(axes, ends)
    return figure


def _label_ends(axes: Axes, ends: list[tuple[float, str, str]]) -> None:
    """Names beside the ends of the lines, pushed apart where lines end together."""
    to_axes = axes.transData + axes.transAxes.inverted()
    lowest = -1.0
    for value, text, color in sorted(ends):
        height = max(float(to_axes.transform((0, value))[1]), lowest + 0.065)
        axes.text(1.01, height, text, color=color, va="center", transform=axes.transAxes)
        lowest = height


def draw_power(record: RunRecord) -> Figure:
    """Power of every GPU over the run; a new stage begins at each faint line."""
    figure, axes = _figure(3.4)
    ends: dict[int, tuple[float, str, str]] = {}
    starts = []
    end, shift = 0.0, 0.0
    for stage in record.stages:
        times = [at for trace in stage.power for at in trace.at_seconds]
        if not times:
            continue
        # A resumed run counts from 0 again; its lines go on where the first part ended.
        shift = max(shift, end - min(times))
        end = max(times) + shift
        starts.append((min(times) + shift, stage.key.replace("_", " ")))
        for trace in stage.power:
            color = _LINES[trace.gpu % len(_LINES)]
            shifted = [each + shift for each in trace.at_seconds]
            axes.plot(shifted, trace.watts, color=color, linewidth=1.2)
            if trace.watts:
                ends[trace.gpu] = (trace.watts[-1], f"GPU {trace.gpu}", color)
    for at, name in starts:
        axes.axvline(at, color=_FAINT, linewidth=0.6, zorder=0)
        axes.annotate(
            clean(name)[:30],
            (at, 1.0),
            xycoords=("data", "axes fraction"),
            xytext=(2, 3),
            textcoords="offset points",
            rotation=30,
            fontsize=8,
            color=_INK,
        )
    axes.set_ylim(bottom=0)
    axes.margins(x=0.01)
    pause = ", without the pause before it was resumed" if shift else ""
    axes.set_xlabel(f"seconds since the run began{pause}")
    axes.set_ylabel("W")
    _label_ends(axes, list(ends.values()))
    return figure


def _figure(height: float) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(7.5, height), layout="constrained")
    return figure, figure.add_subplot()


_DRAW: dict[str, Callable[[RunRecord], Figure]] = {
    "stages.svg": draw_stages,
    "loader.svg": draw_loader,
    "power.svg": draw_power,
}
