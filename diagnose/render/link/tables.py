"""What do the tables of the interconnect look like? A wrong sum shows CORRUPT and no number."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from diagnose.analyze.line_fit import Fit, Unfit
from diagnose.analyze.link.bandwidth import (
    CORRUPT,
    STRAGGLER_RATIO,
    SizeSpeed,
    Speed,
    fit_sizes,
    slowest_rank,
)
from diagnose.analyze.link.expected import Expectation
from diagnose.analyze.link.trials import compare_trials
from diagnose.analyze.units import milliseconds, number, percent, scaled
from diagnose.records.ranks import BandwidthRecord
from diagnose.render.markdown import Align, Footnotes, Markup, prose, table

ONE_RANK = "one rank alone sends nothing over a link"
LEAST_RATE = 1e6  # the smallest rate that keeps two digits in GB/s
TOO_FEW = "fewer than six samples have no 95 % interval"

SHORT_HEADERS = (
    "size",
    "purpose",
    "single ms",
    "window ms",
    "algbw GB/s",
    "busbw GB/s",
    "2·bytes/time",
    "slowest ÷ mean",
)
_LONG_HEADERS = (
    "bytes",
    "purpose",
    Markup("ms [95 % interval]"),
    "mean ms",
    "algbw GB/s",
    "busbw GB/s",
    "2·bytes/time GB/s",
    "samples",
)
_ALIGN: tuple[Align, ...] = ("left", "left") + ("right",) * 6
_TEXT: tuple[Align, ...] = ("left", "left")


def short_rows(sizes: Sequence[SizeSpeed]) -> list[list[str]]:
    """Plain cells, for a terminal as well. Bandwidths are those back to back, where measured."""
    return [[scaled(each.size.nbytes, "B"), each.size.purpose, *_cells(each)] for each in sizes]


def overview(sizes: Sequence[SizeSpeed]) -> list[str]:
    """One row per size, both modes, for the staged report."""
    if not sizes:
        return ["No size was measured."]
    notes = Footnotes()
    rows: list[list[str]] = []
    for each, row in zip(sizes, short_rows(sizes), strict=True):
        reason = each.reason if not each.is_corrupt else ""
        rows.append([*row[:2], notes.doubt(row[2], reason), *row[3:]])
    legend = (
        "Single: one all-reduce after a barrier. Window: per all-reduce of several back to back; "
        "where measured, the bandwidths are its. 2·bytes/time in GB/s is how the field report "
        "counts."
    )
    return [*_with_notes(table(SHORT_HEADERS, rows, _ALIGN), notes), legend]


def one_mode(sizes: Sequence[SizeSpeed], choose: Callable[[SizeSpeed], Speed | None]) -> list[str]:
    """Every number of one mode of timing."""
    notes = Footnotes()
    rows = [
        [str(each.size.nbytes), each.size.purpose, *_mode_cells(each, choose(each), notes)]
        for each in sizes
    ]
    if not rows:
        return ["No size was measured."]
    return _with_notes(table(_LONG_HEADERS, rows, _ALIGN), notes)


def sums(sizes: Sequence[SizeSpeed]) -> str:
    """Whether every element was checked, in one sentence."""
    wrong = sum(each.is_corrupt for each in sizes)
    timed = [each.size for each in sizes if each.best is not None]
    exact = sum(each.wrong_before == each.wrong_after == 0 for each in timed)
    if not wrong + exact:
        return "No sum was checked."
    text = f"Sums, every element before and after timing: exact at {exact} of {len(sizes)} sizes"
    return f"{text}, {CORRUPT} at {wrong}." if wrong else f"{text}."


def line(sizes: Sequence[SizeSpeed]) -> list[str]:
    """Alpha and B, how well they serve, and pieces where one line does not."""
    fit = fit_sizes(sizes)
    if isinstance(fit, Unfit):
        return [prose(f"No line was fitted: {fit.reason}.")]
    rows = [
        ["latency α", f"{number(1e3 * fit.alpha_seconds, 3)} ms"],
        ["bandwidth B (algbw)", f"{gigabytes(fit.bytes_per_second)} GB/s"],
        ["size that reaches half of B", scaled(fit.half_bytes, "B")],
        [
            "largest residual",
            f"{percent(fit.worst_residual)} at {scaled(fit.worst_bytes, 'B')}"
            + ("" if fit.is_one_line else ": not one line"),
        ],
    ]
    blocks = [table(["time = α + bytes / B", ""], rows, _TEXT)]
    return blocks if fit.is_one_line else [*blocks, _pieces(fit)]


def say_expected(expectation: Expectation) -> str:
    if expectation.bytes_per_second is None:
        return f"Expected rate: unknown, {expectation.source}."
    rate = gigabytes(expectation.bytes_per_second)
    note = f" ({expectation.reservation})" if expectation.reservation else ""
    text = f"Expected rate: {rate} GB/s one way, {expectation.link}{note}."
    return f"{text} Source: {expectation.source}."


def gigabytes(rate: float) -> str:
    """GB/s; what four decimals cannot show is not 0."""
    return number(rate / 1e9, 3) if rate >= LEAST_RATE else f"below {LEAST_RATE / 1e9:g}"


def trials(record: BandwidthRecord) -> list[str]:
    outcomes = compare_trials(record)
    if not outcomes:
        return ["No variable was tried: --env-sweep runs the sweep once for each."]
    notes = Footnotes()
    rows = []
    for each in outcomes:
        speed, ratio = each.speed, each.ratio
        why = each.trial.reason or "no usable time was recorded"
        rate = None if speed is None else speed.bus_rate
        rows.append(
            [
                each.trial.name,
                notes.doubt(each.trial.status, each.trial.reason),
                notes.missing(why) if speed is None else scaled(speed.nbytes, "B"),
                notes.missing(why if speed is None else ONE_RANK)
                if rate is None
                else gigabytes(rate),
                notes.missing(why) if ratio is None else f"{number(ratio, 3)}x",
            ]
        )
    headers = ["trial", "ended", "size", "busbw GB/s", "against the first"]
    align: tuple[Align, ...] = ("left", "left", "right", "right", "right")
    return _with_notes(table(headers, rows, align), notes)


def ranks(record: BandwidthRecord, sizes: Sequence[SizeSpeed]) -> list[str]:
    """Where every rank ran, and how its times compare with the mean of all."""
    notes = Footnotes()
    rows = []
    for each in record.ranks:
        late = [size.lateness[each.rank] for size in sizes if each.rank < len(size.lateness)]
        numa = each.numa_node
        rows.append(
            [
                str(each.rank),
                str(each.node),
                each.device_name,
                notes.missing(numa.reason) if numa.value is None else f"{numa.value:g}",
                str(each.threads),
                each.torch_version,
                number(max(late), 3) if late else notes.missing("this rank was never timed"),
            ]
        )
    headers = ["rank", "node", "device", "NUMA node", "threads", "torch", "worst time ÷ mean"]
    align: tuple[Align, ...] = ("right", "right", "left", "right", "right", "left", "right")
    return _with_notes(table(headers, rows, align), notes)


def surroundings(record: BandwidthRecord) -> list[str]:
    notes = Footnotes()
    rows = [
        [name, notes.missing(fact.reason) if fact.value is None else fact.value]
        for name, fact in sorted(record.surroundings.items())
    ]
    if not rows:
        return ["Nothing was read."]
    return _with_notes(table(["read before measuring", ""], rows, _TEXT), notes)


def _pieces(fit: Fit) -> str:
    rows = [
        [
            f"{scaled(each.first_bytes, 'B')} to {scaled(each.last_bytes, 'B')}",
            number(1e3 * each.alpha_seconds, 3),
            "does not grow with the size"
            if each.bytes_per_second is None
            else gigabytes(each.bytes_per_second),
        ]
        for each in fit.pieces
    ]
    return table(["piece", "α ms", "B GB/s"], rows)


def _mode_cells(each: SizeSpeed, speed: Speed | None, notes: Footnotes) -> list[str]:
    if each.is_corrupt:
        return [CORRUPT, *[""] * 5]
    if speed is None:
        missing = notes.missing(each.reason or "this mode was not measured")
        return [missing, *[Markup(missing)] * 5]
    time = milliseconds(speed.seconds)
    if speed.seconds.low is None:
        time = notes.doubt(number(1e3 * speed.seconds.center), TOO_FEW)
    rates = [
        notes.missing(ONE_RANK) if rate is None else gigabytes(rate)
        for rate in (speed.algorithm_rate, speed.bus_rate, speed.doubled_rate)
    ]
    return [time, number(1e3 * speed.mean_seconds), *rates, str(speed.samples)]


def _cells(each: SizeSpeed) -> list[str]:
    blank = len(SHORT_HEADERS) - 3
    if each.is_corrupt:
        return [CORRUPT, *[""] * blank]
    if each.best is None:
        return [each.size.status, *["–"] * blank]
    rates = (each.best.algorithm_rate, each.best.bus_rate, each.best.doubled_rate)
    return [
        *("–" if speed is None else _time(speed) for speed in (each.single, each.window)),
        *("–" if rate is None else gigabytes(rate) for rate in rates),
        _late(each),
    ]


def _time(speed: Speed) -> str:
    return number(1e3 * speed.seconds.center)


def _late(each: SizeSpeed) -> str:
    if len(each.lateness) < 2:
        return "–"
    ratio = max(each.lateness)
    name = f" (rank {slowest_rank(each)})" if ratio > STRAGGLER_RATIO else ""
    return f"{number(ratio, 3)}{name}"


def _with_notes(text: str, notes: Footnotes) -> list[str]:
    return [text, "\n".join(notes.lines())] if notes.lines() else [text]
