"""What does the report on the link between the ranks say? A wrong sum shows CORRUPT, no number."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Literal

from diagnose.analyze.findings import Finding
from diagnose.analyze.flags import find_flags
from diagnose.analyze.line_fit import Fit, Unfit
from diagnose.analyze.link.bandwidth import (
    CORRUPT,
    STRAGGLER_RATIO,
    SizeSpeed,
    Speed,
    fit_sizes,
    measure_sizes,
    slowest_rank,
)
from diagnose.analyze.link.expected import Expectation
from diagnose.analyze.link.trials import TrialResult, compare_trials
from diagnose.analyze.link.verdict import (
    MeasuredLink,
    gradient_cost,
    judge,
    measure_link,
    measure_rate,
)
from diagnose.analyze.units import BYTES, MILLISECONDS, TIMES, Unit, number, percent, scaled
from diagnose.records.ranks import BandwidthRecord, Rank
from diagnose.render.figures import BLUE, GREEN, ORANGE, PURPLE, new_axes
from diagnose.render.findings import finding_sections
from diagnose.render.markdown import clean, prose
from diagnose.render.page import Page, Place, Section, image
from diagnose.render.part import Part
from diagnose.render.table import Cell, Column, Doubt, missing, pairs, table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FIGURE_NAME = "bandwidth.svg"
SWEEP = "sweep"  # the purpose of a size that only the curve needs
ONE_RANK = "one rank alone sends nothing over a link"
BYTES_PER_SECOND = Unit(suffix="B/s", prefixed=True)
# Points of the fitted curve: enough to look round at this size of figure.
_CURVE_POINTS = 60


def page(record: BandwidthRecord) -> Page:
    link, drawn = measure_link(record), figures(record)
    figure = image("Bus bandwidth by size, fitted and expected", FIGURE_NAME, drawn)
    named = [
        each
        for each in link.sizes
        if each.is_corrupt or (each.size.purpose != SWEEP and each.size.status != "skipped")
    ]
    findings = judge(record)
    healthy = not any(each.verdict == "cause" for each in findings)
    fault = "No fault of the link was found." if healthy else ""
    return Page(
        header=record.header,
        title=f"{record.header.label}: all-reduce of {_who(record)}",
        question="How fast is the link between the ranks?",
        answer=answer(record),
        sections=[
            Section(
                Place.LINK,
                "Link between the ranks",
                [
                    *figure,
                    *table(named or link.sizes, MAIN_COLUMNS, "No size was measured."),
                    prose(f"{say_expected(link.expectation)} {_say_sums(link.sizes)} {fault}"),
                ],
            ),
            *finding_sections(
                [*_worth_a_line(findings), *find_flags(record.header.machine)], "Link", ""
            ),
            _detail("Link: every size", table(link.sizes, COLUMNS)),
            _detail("Link: latency and bandwidth", _line(link.sizes)),
            _detail("Link: one variable changed", _trials(record)),
            _detail("Link: ranks", _ranks(record, link.sizes)),
            _detail("Link: read before measuring", _surroundings(record)),
        ],
        method=[
            ("backend", record.backend),
            ("ranks, hosts", f"{len(record.ranks)}, {record.nodes}"),
            ("sizes timed", sum(size.status == "done" for size in record.sizes)),
            ("empty pass through the timing loop", f"{1e6 * record.overhead_seconds:.3g} µs"),
        ],
    )


def answer(record: BandwidthRecord) -> str:
    """What the link gives, what that costs the model, and what to look at first."""
    findings = judge(record)
    causes = [each for each in findings if each.verdict == "cause" and each.kind != "slow_link"]
    causes.sort(key=lambda each: each.kind != "corrupt")  # a wrong sum is worse than any delay
    sentences = [
        f"{_what_it_gives(measure_link(record), findings)}.",
        *(each.sentence for each in causes[:1]),
        *(each.sentence for each in findings if each.kind in ("culprit", "unfinished")),
    ]
    return " ".join(sentences)


def print_table(record: BandwidthRecord) -> str:
    """For a terminal: the answer, the sizes, and what to do."""
    link = measure_link(record)
    findings = [f"{it.sentence} {it.advice}" for it in judge(record) if it.severity != "info"]
    notes = "\n".join(map(clean, [say_expected(link.expectation), *findings]))
    return "\n\n".join([clean(answer(record)), *table(link.sizes, MAIN_COLUMNS), notes])


def say_expected(expectation: Expectation) -> str:
    if expectation.bytes_per_second is None:
        return f"Expected rate: unknown, {expectation.source}."
    rate = BYTES_PER_SECOND.write(expectation.bytes_per_second)
    note = f" ({expectation.reservation})" if expectation.reservation else ""
    return f"Expected: {rate} one way, {expectation.link}{note}."


def _detail(title: str, blocks: Sequence[str]) -> Section:
    return Section(Place.DETAILS, title, blocks, folded=True)


def _worth_a_line(findings: Sequence[Finding]) -> list[Finding]:
    """All but that no rate is expected, which stands below the table already."""
    said = ("link_rate", "cannot tell", "info")
    return [each for each in findings if (each.kind, each.verdict, each.severity) != said]


def _what_it_gives(link: MeasuredLink, findings: Sequence[Finding]) -> str:
    record, sizes, expectation = link.record, link.sizes, link.expectation
    where = "on one machine" if record.nodes < 2 else f"on {record.nodes} hosts"
    who = f"{_who(record)} {where}"
    timed = [each.best for each in sizes if each.best is not None]
    if not timed:
        reason = next((each.reason for each in sizes if each.reason), "no size was reached")
        return f"No all-reduce of {who} could be timed: {reason.rstrip('.')}"
    # Where no size is large enough to be judged, the largest says the most.
    from_bytes = min(expectation.judged_from_bytes, max(speed.nbytes for speed in timed))
    rate = measure_rate(sizes, from_bytes)
    if rate is None:
        return f"One rank alone sends nothing; {gradient_cost(sizes)}"
    text = (
        f"{who} exchange {number(rate.bytes_per_second / 1e9, 3)} GB/s (busbw from "
        f"{scaled(from_bytes, 'B')})"
    )
    if link.share is not None:
        expected = BYTES_PER_SECOND.write(expectation.bytes_per_second or 0.0)
        text += f", {percent(link.share)} of the {expected} expected of {expectation.link}"
    slow = ": a slow link" if any(each.kind == "slow_link" for each in findings) else ""
    return f"{text}{slow}; {gradient_cost(sizes)}"


def _who(record: BandwidthRecord) -> str:
    plural = "" if len(record.ranks) == 1 else "s"
    return f"{len(record.ranks)} rank{plural} over {record.backend}"


def _say_sums(sizes: Sequence[SizeSpeed]) -> str:
    """Whether every element was checked, in one sentence."""
    wrong = sum(each.is_corrupt for each in sizes)
    timed = [each.size for each in sizes if each.best is not None]
    exact = sum(each.wrong_before == each.wrong_after == 0 for each in timed)
    if not wrong + exact:
        return "No sum was checked."
    text = (
        f"Sums of all elements, before and after timing: exact at {exact} of {len(timed) + wrong}"
    )
    return f"{text} sizes, {CORRUPT} at {wrong}." if wrong else f"{text} sizes."


# --- tables ---


def _of(
    mode: Literal["single", "window", "best"], value: Callable[[Speed], Cell]
) -> Callable[[SizeSpeed], Cell]:
    """A cell of one way of timing: empty for a wrong sum, a reason for what was not timed."""

    def cell(each: SizeSpeed) -> Cell:
        speed: Speed | None = getattr(each, mode)
        if each.is_corrupt:
            return None
        return missing(each.reason or "not timed in this way") if speed is None else value(speed)

    return cell


def _bus_rate(speed: Speed) -> Cell:
    return missing(ONE_RANK) if speed.bus_rate is None else speed.bus_rate


def _lateness(each: SizeSpeed) -> Cell:
    if len(each.lateness) < 2:
        return None
    ratio = max(each.lateness)
    name = f" (rank {slowest_rank(each)})" if ratio > STRAGGLER_RATIO else ""
    return f"{number(ratio, 3)}{name}"


COLUMNS: tuple[Column[SizeSpeed], ...] = (
    Column("size", lambda each: each.size.nbytes, BYTES),
    Column("purpose", lambda each: each.size.purpose, left=True),
    Column("sums", lambda each: CORRUPT if each.is_corrupt else None, left=True),
    Column("one at a time ms", _of("single", lambda speed: speed.seconds), MILLISECONDS),
    Column("back to back ms", _of("window", lambda speed: speed.seconds), MILLISECONDS),
    Column("busbw", _of("best", _bus_rate), BYTES_PER_SECOND),
    Column("algbw", _of("best", lambda speed: speed.algorithm_rate), BYTES_PER_SECOND),
    Column("samples", _of("single", lambda speed: speed.samples)),
    Column("windows", _of("window", lambda speed: speed.samples)),
    Column("slowest ÷ mean", _lateness),
)
MAIN_COLUMNS = COLUMNS[:6]


def _line(sizes: Sequence[SizeSpeed]) -> list[str]:
    """Alpha and B, and how well they serve."""
    fit = fit_sizes(sizes)
    if isinstance(fit, Unfit):
        return [prose(f"No line was fitted: {fit.reason}.")]
    residual = f"{percent(fit.worst_residual)} at {scaled(fit.worst_bytes, 'B')}"
    rows = [
        ("latency α", f"{number(1e3 * fit.alpha_seconds, 3)} ms"),
        ("bandwidth B (algbw)", BYTES_PER_SECOND.write(fit.bytes_per_second)),
        ("size that reaches half of B", scaled(fit.half_bytes, "B")),
        ("largest residual", residual + ("" if fit.is_one_line else ": not one line")),
    ]
    return pairs(rows, "time = α + bytes / B")


def _trials(record: BandwidthRecord) -> list[str]:
    def reached(value: Callable[[Speed], Cell]) -> Callable[[TrialResult], Cell]:
        def cell(result: TrialResult) -> Cell:
            reason = result.trial.reason or "no usable time was recorded"
            return missing(reason) if result.speed is None else value(result.speed)

        return cell

    columns: tuple[Column[TrialResult], ...] = (
        Column("trial", lambda it: it.trial.name),
        Column("ended", lambda it: Doubt(it.trial.status, it.trial.reason), left=True),
        Column("size", reached(lambda speed: speed.nbytes), BYTES),
        Column("busbw", reached(_bus_rate), BYTES_PER_SECOND),
        Column("against the first", lambda it: it.ratio, TIMES),
    )
    none = "No variable was tried: --env-sweep runs the sweep once for each."
    return table(compare_trials(record), columns, none)


def _ranks(record: BandwidthRecord, sizes: Sequence[SizeSpeed]) -> list[str]:
    """Where every rank ran, and how its times compare with the mean of all."""

    def worst(rank: Rank) -> Cell:
        late = [size.lateness[rank.rank] for size in sizes if rank.rank < len(size.lateness)]
        return number(max(late), 3) if late else missing("this rank was never timed")

    columns: tuple[Column[Rank], ...] = (
        Column("rank", lambda rank: rank.rank),
        Column("node", lambda rank: rank.node),
        Column("device", lambda rank: rank.device_name, left=True),
        Column("NUMA node", lambda rank: rank.numa_node),
        Column("threads", lambda rank: rank.threads),
        Column("torch", lambda rank: rank.torch_version, left=True),
        Column("worst time ÷ mean", worst),
    )
    return table(record.ranks, columns)


def _surroundings(record: BandwidthRecord) -> list[str]:
    rows: list[tuple[str, Cell]] = sorted(record.surroundings.items(), key=lambda row: row[0])
    return pairs(rows, "read before measuring") if rows else ["Nothing was read."]


# --- the figure ---


def figures(record: BandwidthRecord) -> Mapping[str, Callable[[], Figure]]:
    """One rank alone has no bus bandwidth that could be drawn."""
    speeds = [each.best for each in measure_sizes(record)]
    if not any(each is not None and each.bus_rate for each in speeds):
        return {}
    return {FIGURE_NAME: partial(draw_bandwidth, measure_link(record))}


def draw_bandwidth(link: MeasuredLink) -> Figure:
    """Bus bandwidth by size: both ways of timing, the line fitted to the first, what to expect."""
    figure, axes = new_axes(4.0)
    axes.set_xscale("log")
    axes.set_yscale("log")
    _draw_mode(axes, [each.single for each in link.sizes], BLUE, "o", "one at a time")
    _draw_mode(axes, [each.window for each in link.sizes], ORANGE, "s", "back to back")
    _draw_fit(axes, link)
    rate = link.expectation.bytes_per_second
    if rate is not None:
        axes.axhline(rate / 1e9, color=GREEN, linestyle=(0, (4, 3)), label="expected")
    for each in link.sizes:
        if each.is_corrupt and each.size.nbytes:
            axes.axvline(each.size.nbytes, color=PURPLE, linewidth=0.8)
            place = (each.size.nbytes, 0.02)
            axes.annotate(
                f" {CORRUPT}", place, xycoords=("data", "axes fraction"), color=PURPLE, rotation=90
            )
    # Powers of ten, so that a tick reads 10 kB and never 2.05 kB.
    axes.xaxis.set_major_formatter(lambda value, _: re.sub(r"\.0+ ", " ", scaled(value, "B")))
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set_xlabel("size of the tensor")
    axes.set_ylabel("busbw GB/s")
    axes.legend(loc="lower right", frameon=False)
    return figure


def _draw_mode(
    axes: Axes, speeds: Sequence[Speed | None], color: str, marker: str, label: str
) -> None:
    drawn = [(each.nbytes, each.bus_rate / 1e9) for each in speeds if each and each.bus_rate]
    if drawn:
        places, rates = zip(*drawn, strict=True)
        axes.plot(places, rates, marker=marker, markersize=4, color=color, label=label)


def _draw_fit(axes: Axes, link: MeasuredLink) -> None:
    fit, world_size = fit_sizes(link.sizes), len(link.record.ranks)
    if not isinstance(fit, Fit) or world_size < 2:
        return
    measured = [each.single.nbytes for each in link.sizes if each.single is not None]
    first, growth = min(measured), max(measured) / min(measured)
    places = [first * growth ** (step / _CURVE_POINTS) for step in range(_CURVE_POINTS + 1)]
    factor = 2 * (world_size - 1) / world_size
    rates = [factor * place / fit.predict_seconds(place) / 1e9 for place in places]
    axes.plot(places, rates, color=BLUE, linewidth=0.8, linestyle=":", label="fitted α + bytes/B")


PART = Part(BandwidthRecord, "How fast is the link between the ranks?", page, figures)
