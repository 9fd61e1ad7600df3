"""How many joules, and how many throttled seconds, fell into these windows of time?

Pure functions of samples. A window is (begin, end) on the clock that stamped the samples.
"""

from __future__ import annotations

import math
import statistics
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from diagnose.records.header import Reading

Window = tuple[float, float]
# Of the seconds to the next sample, the value and the next value: what a second of it holds.
Rate = Callable[[float, float, float], float]

MIN_CHANGES = 10  # gaps between counter changes that a period is the median of
# A longer silence than this many usual gaps means that samples are missing there, and what
# happened at a window's edge inside it is unknown.
MAX_SILENT_GAPS = 5.0
# The usual gap of a sampler on a busy machine: a shorter silence is scheduling, not a loss.
MIN_SILENT_SECONDS = 0.5
# An averaging sensor shows what was before a window for the length of its average. A window of
# three such lengths leaves two of its own.
MIN_AVERAGES_PER_WINDOW = 3

NO_WINDOW = "nothing was measured, so there is no time to look at"
RELOADED = "the counter went backwards, so the driver was reloaded during the measurement"
NOT_COVERED = "the samples do not reach from before the first slot to after the last"


@dataclass(frozen=True)
class Series:
    """One quantity of one GPU over time, and why it ended or never began."""

    at: Sequence[float] = ()
    values: Sequence[float] = ()
    ended_at: float | None = None  # when reading it began to fail, and never worked again
    reason: str = ""

    def covers(self, begin: float, end: float) -> bool:
        return len(self.at) > 0 and self.at[0] <= begin and end <= self.at[-1]

    def reason_without(self, end: float) -> str:
        """Why a time that ends at `end` is not covered, or "" if no failure is known."""
        return self.reason if self.ended_at is not None and self.ended_at <= end else ""


def values_within(series: Series, windows: Sequence[Window]) -> list[float]:
    found: list[float] = []
    for begin, end in windows:
        found += series.values[bisect_left(series.at, begin) : bisect_right(series.at, end)]
    return found


def find_period(counter: Series) -> Reading:
    """How often the counter moves: the median gap, because the shortest one is noise."""
    gaps = [gap for run in _find_moves(counter) for gap in _gaps(run.at)]
    if len(gaps) < MIN_CHANGES:
        reason = counter.reason or f"the energy counter moved fewer than {MIN_CHANGES + 1} times"
        return Reading(None, reason)
    return Reading(statistics.median(gaps))


def find_changes(counter: Series) -> Window | None:
    """The first and the last moment at which the counter was seen to move."""
    runs = _find_moves(counter)
    return (runs[0].at[0], runs[-1].at[-1]) if runs else None


def count_joules(counter: Series, windows: Sequence[Window]) -> Reading:
    """Energy by the counter, linear between the moments at which it was seen to move.

    Between two moves the counter shows the past, so reading it at a window's edge would be wrong
    by up to one period. Every move is seen late by the same part of the polling interval, which
    cancels in the difference.
    """
    unread = "the energy counter was not read around the edge of a slot"
    runs = _find_moves(counter)
    total = _integrate(counter, windows, _slope, runs, unread, only_edges=True)
    period = find_period(counter).value or 0.0
    if total.value is not None and min(end - begin for begin, end in windows) < period:
        smoothed = f"slots are shorter than the counter's period of {period:.3f} s: smoothed"
        return Reading(total.value, smoothed)
    return total


def integrate_watts(
    power: Series, windows: Sequence[Window], average_seconds: float = 0.0
) -> Reading:
    """Energy by samples, each held until the next: a sensor shows steps, not ramps.

    The first samples that a sensor of averages shows in a window belong to what ran before, which
    in interleaved slots is another variant. They are left out; the others stand for the window.
    """
    if not average_seconds or not windows:
        unread = "power was not read for a part of a slot"
        return _integrate(power, windows, _hold, (power,), unread)
    shortest = min(end - begin for begin, end in windows)
    needed = MIN_AVERAGES_PER_WINDOW * average_seconds
    if shortest < needed:
        return Reading(
            None,
            f"the power sensor averages over {average_seconds:g} s and the slots last "
            f"{shortest:.2g} s; they would share their neighbours' watts, so slots of "
            f"{needed:g} s or an energy counter are needed",
        )
    total = 0.0
    for begin, end in windows:
        own = integrate_watts(power, [(begin + average_seconds, end)])
        if own.value is None:
            return own
        total += own.value * (end - begin) / (end - begin - average_seconds)
    return Reading(total)


def count_growth(counter: Series, windows: Sequence[Window]) -> Reading:
    """How much a steadily updated counter grew within the windows."""
    return _integrate(counter, windows, _slope, _split_at_reloads(counter))


def count_seconds_with(masks: Series, bit: int, windows: Sequence[Window]) -> Reading:
    """Seconds during which `bit` was set in two samples in a row: one alone may be a transition."""

    def is_set(_: float, value: float, following: float) -> float:
        return float(bool(int(value) & int(following) & bit))

    return _integrate(masks, windows, is_set, (masks,))


def thin_out(series: Series, begin: float, end: float, limit: int) -> Series:
    """At most `limit` points between two moments; neighbours are averaged, so the area stays."""
    first, last = bisect_left(series.at, begin), bisect_right(series.at, end)
    at, values = series.at[first:last], series.values[first:last]
    if len(at) <= limit:
        return Series(tuple(at), tuple(values))
    bounds = [round(i * len(at) / limit) for i in range(limit + 1)]
    return Series(
        tuple(statistics.fmean(at[low:high]) for low, high in pairwise(bounds)),
        tuple(statistics.fmean(values[low:high]) for low, high in pairwise(bounds)),
    )


def _hold(_: float, value: float, following: float) -> float:
    return value


def _slope(seconds: float, value: float, following: float) -> float:
    return (following - value) / seconds


def _integrate(
    series: Series,
    windows: Sequence[Window],
    rate: Rate,
    pieces: Sequence[Series],
    unread: str = "",
    only_edges: bool = False,
) -> Reading:
    """The sum over the windows of a rate that is constant between one sample and the next.

    A window has to lie within one of the `pieces`. If `unread` says something, it says why there
    is no sum when no sample was taken for long: in a window, or only around its edges.
    """
    if not windows:
        return Reading(None, NO_WINDOW)
    limits = [_silence_limit(piece.at) if unread else math.inf for piece in pieces]
    total = 0.0
    for begin, end in windows:
        covering = [i for i, piece in enumerate(pieces) if piece.covers(begin, end)]
        if not covering:
            return Reading(None, _say_uncovered(series, pieces, (begin, end)))
        piece, limit = pieces[covering[0]], limits[covering[0]]
        first, last = bisect_right(piece.at, begin) - 1, bisect_left(piece.at, end)
        gaps = _gaps(piece.at[first : last + 1])
        if max(gaps[:1] + gaps[-1:] if only_edges else gaps, default=0.0) > limit:
            return Reading(None, unread)
        for i, gap in enumerate(gaps, first):
            inside = min(piece.at[i + 1], end) - max(piece.at[i], begin)
            if inside > 0:
                total += inside * rate(gap, piece.values[i], piece.values[i + 1])
    return Reading(total)


def _say_uncovered(series: Series, pieces: Sequence[Series], window: Window) -> str:
    for earlier, later in pairwise(pieces):
        if window[0] < later.at[0] and window[1] > earlier.at[-1]:
            return RELOADED
    return series.reason_without(window[1]) or series.reason or NOT_COVERED


def _split_at_reloads(counter: Series) -> list[Series]:
    """The stretches of samples in which the counter never decreases."""
    values = counter.values
    drops = [i for i in range(1, len(values)) if values[i] < values[i - 1]]
    bounds = [0, *drops, len(values)]
    return [Series(counter.at[low:high], values[low:high]) for low, high in pairwise(bounds)]


def _find_moves(counter: Series) -> list[Series]:
    """Of every stretch without a reload the moments at which the value was new, if there are any.

    The first sample of a stretch is none: nobody knows when the counter came to that value.
    """
    runs = []
    for piece in _split_at_reloads(counter):
        moved = [i for i in range(1, len(piece.at)) if piece.values[i] > piece.values[i - 1]]
        if moved:
            runs.append(Series([piece.at[i] for i in moved], [piece.values[i] for i in moved]))
    return runs


def _silence_limit(at: Sequence[float]) -> float:
    gaps = _gaps(at)
    usual = statistics.median(gaps) if gaps else 0.0
    return max(MAX_SILENT_GAPS * usual, MIN_SILENT_SECONDS)


def _gaps(at: Sequence[float]) -> list[float]:
    return [later - earlier for earlier, later in pairwise(at)]
