"""What does the link look like? Bus bandwidth against size, both axes logarithmic."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from diagnose.analyze import derive
from diagnose.analyze.line_fit import Fit
from diagnose.analyze.link.bandwidth import CORRUPT, SizeSpeed, Speed, fit_sizes, measure_sizes
from diagnose.analyze.link.expected import expect
from diagnose.analyze.units import scaled
from diagnose.records.ranks import BandwidthRecord
from diagnose.render.figures import BLUE, GREEN, ORANGE, PURPLE, save_figure
from diagnose.render.link.report import figure_names

# Points of the fitted curve: enough to look round at this size of figure.
_CURVE_POINTS = 60


def bandwidth_figures(record: BandwidthRecord) -> Mapping[str, bytes]:
    """Every figure that the record supports, by file name, sealed with its fingerprint."""
    draw = functools.partial(draw_bandwidth, record)
    fingerprint = derive.fingerprint(record)
    return {name: save_figure(draw, fingerprint) for name in figure_names(record)}


def draw_bandwidth(record: BandwidthRecord) -> Figure:
    """Both ways of timing, the line fitted to the first, and the expected rate."""
    sizes = measure_sizes(record)
    figure = Figure(figsize=(7.5, 4.0), layout="constrained")
    axes = figure.add_subplot()
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    _draw_mode(axes, sizes, lambda each: each.single, BLUE, "o", "one at a time")
    _draw_mode(axes, sizes, lambda each: each.window, ORANGE, "s", "back to back")
    _draw_fit(axes, sizes, len(record.ranks))
    rate = expect(record).bytes_per_second
    if rate is not None:
        axes.axhline(rate / 1e9, color=GREEN, linestyle=(0, (4, 3)), label="expected")
    for each in sizes:
        if each.is_corrupt:
            axes.axvline(each.size.nbytes, color=PURPLE, linewidth=0.8)
            place = (each.size.nbytes, 0.02)
            axes.annotate(
                f" {CORRUPT}", place, xycoords=("data", "axes fraction"), color=PURPLE, rotation=90
            )
    axes.xaxis.set_major_formatter(lambda value, _: scaled(value, "B"))
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set_xlabel("size of the tensor")
    axes.set_ylabel("busbw GB/s")
    axes.legend(loc="lower right", frameon=False)
    return figure


def _draw_mode(
    axes: Axes,
    sizes: Sequence[SizeSpeed],
    choose: Callable[[SizeSpeed], Speed | None],
    color: str,
    marker: str,
    label: str,
) -> None:
    speeds = sorted(
        (speed for speed in map(choose, sizes) if speed is not None and speed.bus_rate),
        key=lambda speed: speed.nbytes,
    )
    if speeds:
        places = [speed.nbytes for speed in speeds]
        rates = [(speed.bus_rate or 0.0) / 1e9 for speed in speeds]
        axes.plot(places, rates, marker=marker, markersize=4, color=color, label=label)


def _draw_fit(axes: Axes, sizes: Sequence[SizeSpeed], world_size: int) -> None:
    fit = fit_sizes(sizes)
    if not isinstance(fit, Fit) or world_size < 2:
        return
    measured = [each.single.nbytes for each in sizes if each.single is not None]
    first, growth = min(measured), max(measured) / min(measured)
    places = [first * growth ** (step / _CURVE_POINTS) for step in range(_CURVE_POINTS + 1)]
    factor = 2 * (world_size - 1) / world_size
    rates = [factor * place / fit.predict_seconds(place) / 1e9 for place in places]
    axes.plot(places, rates, color=BLUE, linewidth=0.8, linestyle=":", label="fitted α + bytes/B")
