"""What do the numbers of a run look like? Stages, loader and power."""

from __future__ import annotations

import functools
import statistics
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from diagnose.analyze import derive
from diagnose.analyze.units import number, scale
from diagnose.records.run import Measurement, RunRecord, StageResult
from diagnose.render.figures import (
    BLUE,
    FAINT,
    INK,
    LINES,
    SKY,
    Bar,
    draw_bars,
    label,
    label_ends,
    new_axes,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# From here on a linear axis would press the smaller values into one line.
_LOG_FROM_RATIO = 8


def figures(record: RunRecord) -> Mapping[str, Callable[[], Figure]]:
    """The figures that this record supports."""
    found: dict[str, Callable[[RunRecord], Figure]] = {}
    if derive.steps(record):
        found["stages.svg"] = draw_stages
    if derive.results(record, "loader"):
        found["loader.svg"] = draw_loader
    if not derive.no_power_reason(record):
        found["power.svg"] = draw_power
    return {name: functools.partial(draw, record) for name, draw in found.items()}


def draw_stages(record: RunRecord) -> Figure:
    """One bar per stage in the order of the ladder, with its interval and its number."""
    # Ceilings are no steps, and a stage that does not apply has no place in the ladder.
    stages = [s for s in record.stages if s.key != "ceilings" and s.status != "skipped"]
    measured = [each for each in map(derive.shown, stages) if each is not None]
    usual = statistics.mode(each.samples_per_step for each in measured)
    bars = [_stage_bar(stage, derive.shown(stage), usual) for stage in stages]
    return draw_bars(bars, "ms per step (DataLoader: ms per batch), with the 95 % interval")


def _stage_bar(stage: StageResult, each: Measurement | None, usual: int | None) -> Bar:
    if each is None:
        return Bar(stage.title, None, stage.status)
    note = "" if stage.status == "done" else f" ({stage.status})"
    value = scale(derive.step_seconds(each), 1e3)
    text = f"{number(value.center)} ms{note}"
    # A step of another batch size must not be read against its neighbours.
    if each.samples_per_step != usual:
        return Bar(stage.title, None, f"{text} at batch {each.samples_per_step}, not to scale")
    color = SKY if stage.key == "loader" else BLUE
    return Bar(stage.title, value.center, text, color, interval=value.ends)


def draw_loader(record: RunRecord) -> Figure:
    """Milliseconds per batch by workers, one line per storage, against the time of a step."""
    series = derive.loader_series(record)
    figure, axes = new_axes(3.6)
    counts = {count for row in series.values() for count in row}
    workers = sorted(counts, key=lambda count: (count is None, count))
    ends, values = [], []
    for color, (name, row) in zip(LINES * len(series), series.items(), strict=False):
        places = [workers.index(count) for count in workers if count in row]
        times = [scale(derive.step_seconds(row[count]), 1e3) for count in workers if count in row]
        centers = [each.center for each in times]
        axes.plot(places, centers, marker="o", markersize=4, color=color)
        for place, each in zip(places, times, strict=True):
            if each.ends is not None:
                axes.vlines(place, *each.ends, color=color, linewidth=1.5)
        ends.append((centers[-1], name, color))
        values += centers
    # Without the pipeline in it: what the loader must keep up with.
    training = derive.result(record, "training")
    if training is not None:
        step = 1e3 * derive.step_seconds(training).center
        values.append(step)
        axes.axhline(step, color=INK, linewidth=1, linestyle=(0, (4, 3)))
        ends.append((step, "one training step", INK))
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
    label_ends(axes, ends)
    return figure


def draw_power(record: RunRecord) -> Figure:
    """Power of every GPU over the run; a new stage begins at each faint line."""
    figure, axes = new_axes(3.4)
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
            color = LINES[trace.gpu % len(LINES)]
            shifted = [each + shift for each in trace.at_seconds]
            axes.plot(shifted, trace.watts, color=color, linewidth=1.2)
            if trace.watts:
                ends[trace.gpu] = (trace.watts[-1], f"GPU {trace.gpu}", color)
    for at, name in starts:
        axes.axvline(at, color=FAINT, linewidth=0.6, zorder=0)
        axes.annotate(
            label(name),
            (at, 1.0),
            xycoords=("data", "axes fraction"),
            xytext=(2, 3),
            textcoords="offset points",
            rotation=30,
            fontsize=8,
            color=INK,
        )
    axes.set_ylim(bottom=0)
    axes.margins(x=0.01)
    pause = ", without the pause before it was resumed" if shift else ""
    axes.set_xlabel(f"seconds since the run began{pause}")
    axes.set_ylabel("W")
    label_ends(axes, list(ends.values()))
    return figure
