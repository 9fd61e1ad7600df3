"""Does a script give back what the tool promised? Promised against real gain, one point each."""

from __future__ import annotations

import functools

from matplotlib.figure import Figure

from diagnose.analyze import derive
from diagnose.analyze.accuracy import MOST_GAIN_ERROR
from diagnose.records.accuracy import AccuracyRecord
from diagnose.render.accuracy.report import FIGURE_NAME, compared
from diagnose.render.figures import BLUE, GREEN, ORANGE, save_figure
from diagnose.render.markdown import clean


def accuracy_figures(record: AccuracyRecord) -> dict[str, bytes]:
    """The figure by its file name; none without a gain to compare."""
    if not compared(record):
        return {}
    draw = functools.partial(draw_gains, record)
    return {FIGURE_NAME: save_figure(draw, derive.fingerprint(record))}


def draw_gains(record: AccuracyRecord) -> Figure:
    """Both axes logarithmic, so that a share looks the same everywhere; the goal as a band."""
    figure = Figure(figsize=(7.5, 5.0), layout="constrained")
    axes = figure.add_subplot()
    axes.set_xscale("log")
    axes.set_yscale("log")
    gains = []
    for each in compared(record):
        assert each.real is not None
        real, said = each.real.center * 1e3, each.paced_seconds * 1e3
        gains += [real, said]
        color = BLUE if each.cause_right else ORANGE
        axes.plot([real], [said], marker="o", markersize=5, color=color, linestyle="none")
        axes.annotate(
            clean(each.result.name)[:40],
            (real, said),
            xytext=(4, -8),
            textcoords="offset points",
            fontsize=6,
        )
    ends = [min(gains) / 1.5, max(gains) * 1.5]
    axes.plot(ends, ends, color=GREEN, linewidth=1)
    axes.fill_between(
        ends,
        [(1 - MOST_GAIN_ERROR) * end for end in ends],
        [(1 + MOST_GAIN_ERROR) * end for end in ends],
        color=GREEN,
        alpha=0.15,
        linewidth=0,
    )
    axes.set_xlabel("real gain of the repaired twin, ms per step")
    axes.set_ylabel("promised, ms per step (orange: under another top cause)")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_major_formatter("{x:g}")
    return figure
