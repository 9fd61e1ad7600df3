"""What does a larger batch bring, and what does it take? Throughput above, memory below."""

from __future__ import annotations

import functools

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from diagnose.analyze import derive
from diagnose.analyze.batch_size.choice import Answer, judge
from diagnose.records.batch_size import BatchSizeRecord
from diagnose.render.batch_size.report import FIGURE_NAME, has_figure
from diagnose.render.figures import BLUE, GREEN, ORANGE, PURPLE, SKY, save_figure
from diagnose.render.markdown import clean

_COLORS = (BLUE, ORANGE, GREEN, PURPLE, SKY)


def batch_size_figures(record: BatchSizeRecord) -> dict[str, bytes]:
    """The figure by its file name; none without a sweep."""
    if not has_figure(record):
        return {}
    draw = functools.partial(draw_batch_sizes, record)
    return {FIGURE_NAME: save_figure(draw, derive.fingerprint(record))}


def draw_batch_sizes(record: BatchSizeRecord) -> Figure:
    figure = Figure(figsize=(7.5, 5.4), layout="constrained")
    upper, lower = figure.subplots(2, 1, sharex=True)
    for place, each in enumerate(record.configurations):
        answer = judge(each)
        if answer.rows:
            color = _COLORS[place % len(_COLORS)]
            _draw_throughput(upper, answer, color)
            _draw_memory(lower, answer, color)
    upper.set_ylim(bottom=0)
    upper.set_ylabel("samples/s")
    lower.set_xscale("log", base=2)
    lower.set_ylim(bottom=0)
    lower.set_ylabel("peak, GB")
    lower.set_xlabel("batch size; a ring marks the smallest with 95 % of the peak")
    lower.xaxis.set_major_formatter("{x:g}")
    if len(record.configurations) > 1:
        upper.legend(frameon=False)
    return figure


def _draw_throughput(axes: Axes, answer: Answer, color: str) -> None:
    batches = [row.batch for row in answer.rows]
    rates = [row.samples_per_second for row in answer.rows]
    centers = [rate.center for rate in rates]
    below = [r.center - (r.center if r.low is None else r.low) for r in rates]
    above = [(r.center if r.high is None else r.high) - r.center for r in rates]
    name = clean(answer.configuration.key)[:30]
    axes.errorbar(
        batches, centers, yerr=[below, above], color=color, marker="o", markersize=4, label=name
    )
    knee = next((row for row in answer.rows if row.batch == answer.knee), None)
    if knee is not None:
        axes.plot(
            [knee.batch],
            [knee.samples_per_second.center],
            marker="o",
            markersize=12,
            markerfacecolor="none",
            markeredgecolor=color,
        )
    if answer.loader_samples_per_second is not None:
        loader = answer.loader_samples_per_second.center
        axes.axhline(loader, color=color, linestyle=":", linewidth=1)
        axes.annotate(
            "loader",
            (batches[0], loader),
            xytext=(0, 3),
            textcoords="offset points",
            color=color,
        )


def _draw_memory(axes: Axes, answer: Answer, color: str) -> None:
    measured = [
        (probe.batch, probe.peak_bytes.value / 1e9)
        for probe in answer.configuration.probes
        if probe.fits and probe.peak_bytes.value is not None
    ]
    axes.plot(*zip(*measured, strict=True), color=color, marker="o", markersize=4, linestyle="none")
    if answer.line is not None:
        batches = sorted({batch for batch, _ in measured})
        line = [answer.line.predict_bytes(batch) / 1e9 for batch in batches]
        axes.plot(batches, line, color=color, linewidth=1)
