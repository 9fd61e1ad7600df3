"""How many joules, and how many throttled seconds, fell into these windows of time?

Pure functions of samples. A window is (begin, end) on the clock that stamped the samples.
"""

from __future__ import annotations

import statistics
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from diagnose.records.header import Reading

Window = tuple[float, float]

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

    def reason_without(self, end: float) -> str:
        """Why a time that ends at `end` is not covered, or "" if no failure is known."""
        return self.reason if self.ended_at is not None and self.ended_at <= end else ""


@dataclass(frozen=True, eq=False)
class _Edges:
    """Moments at which a counter was seen with a new value, without a driver reload between."""

    at: tuple[float, ...]
    values: tuple[float, ...]


def values_within(series: Series, windows: Sequence[Window]) -> list[float]:
    found: list[float] = []
    for begin, end in windows:
        found += series.values[bisect_left(series.at, begin) : bisect_right(series.at, end)]
    return found


def total_seconds(windows: Sequence[Window]) -> float:
    return sum(end - begin for begin, end in windows)


def find_period(counter: Series) -> Reading:
    """How often the counter moves: the median gap, because the shortest one is noise."""
    gaps = [gap for run in _find_edges(counter) for gap in _gaps(run.at)]
    if len(gaps) < MIN_CHANGES:
        reason = counter.reason or f"the energy counter moved fewer than {MIN_CHANGES + 1} times"
        return Reading(None, reason)
    return Reading(statistics.median(gaps))


def find_changes(counter: Series) -> Window | None:
    """The first and the last moment at which the counter was seen to move."""
    runs = _find_edges(counter)
    return (runs[0].at[0], runs[-1].at[-1]) if runs else None


def count_joules(counter: Series, windows: Sequence[Window]) -> Reading:
    """Energy by the counter, linear between the moments at which it was seen to move.

    Between two moves the counter shows the past, so reading it at a window's edge would be wrong
    by up to one period. Every move is seen late by the same part of the polling interval, which
    cancels in the difference.
    """
    if not windows:
        return Reading(None, NO_WINDOW)
    runs = _find_edges(counter)
    limits = {run: _silence_limit(run.at) for run in runs}
    total = 0.0
    for window in windows:
        run = next((it for it in runs if it.at[0] <= window[0] and window[1] <= it.at[-1]), None)
        if run is None:
            return Reading(None, _say_uncovered(counter, runs, window))
        if _longest_gap_at(run.at, window) > limits[run]:
            return Reading(None, "the energy counter was not read around the edge of a slot")
        total += _interpolate(run.at, run.values, window[1])
        total -= _interpolate(run.at, run.values, window[0])
    period = find_period(counter).value or 0.0
    if min(end - begin for begin, end in windows) < period:
        return Reading(
            total, f"slots are shorter than the counter's period of {period:.3f} s: smoothed"
        )
    return Reading(total)


def integrate_watts(power: Series, windows: Sequence[Window]) -> Reading:
    """Energy by samples, each held until the next: a sensor shows steps, not ramps."""
    if not windows:
        return Reading(None, NO_WINDOW)
    limit = _silence_limit(power.at)
    total = 0.0
    for begin, end in windows:
        if not power.at or begin < power.at[0] or end > power.at[-1]:
            return Reading(None, power.reason_without(end) or power.reason or NOT_COVERED)
        first, last = bisect_right(power.at, begin) - 1, bisect_left(power.at, end)
        if max(_gaps(power.at[first : last + 1]), default=0.0) > limit:
            return Reading(None, "power was not read for a part of a slot")
        for i in range(first, last):
            held = min(power.at[i + 1], end) - max(power.at[i], begin)
            total += power.values[i] * held
    return Reading(total)


def integrate_averages(power: Series, windows: Sequence[Window], average_seconds: float) -> Reading:
    """Energy by a sensor that shows the mean of the last `average_seconds`.

    Its first samples in a window belong to what ran before, which in interleaved slots is another
    variant. They are left out, and the others stand for the whole window.
    """
    if not windows:
        return Reading(None, NO_WINDOW)
    shortest = min(end - begin for begin, end in windows)
    wanted = MIN_AVERAGES_PER_WINDOW * average_seconds
    if shortest < wanted:
        return Reading(
            None,
            f"the power sensor averages over {average_seconds:g} s and the slots last "
            f"{shortest:.2g} s; they would share their neighbours' watts, so slots of "
            f"{wanted:g} s or an energy counter are needed",
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
    if not windows:
        return Reading(None, NO_WINDOW)
    total = 0.0
    for begin, end in windows:
        if not counter.at or begin < counter.at[0] or end > counter.at[-1]:
            return Reading(None, counter.reason_without(end) or counter.reason or NOT_COVERED)
        first, last = bisect_right(counter.at, begin) - 1, bisect_left(counter.at, end)
        if any(later < earlier for earlier, later in pairwise(counter.values[first : last + 1])):
            return Reading(None, RELOADED)
        total += _interpolate(counter.at, counter.values, end)
        total -= _interpolate(counter.at, counter.values, begin)
    return Reading(total)


def count_seconds_with(masks: Series, bit: int, windows: Sequence[Window]) -> Reading:
    """Seconds during which `bit` was set in two samples in a row: one alone may be a transition."""
    if not windows:
        return Reading(None, NO_WINDOW)
    total = 0.0
    for begin, end in windows:
        if not masks.at or begin < masks.at[0] or end > masks.at[-1]:
            return Reading(None, masks.reason_without(end) or masks.reason or NOT_COVERED)
        first, last = bisect_right(masks.at, begin) - 1, bisect_left(masks.at, end)
        for i in range(first, last):
            if int(masks.values[i]) & int(masks.values[i + 1]) & bit:
                total += min(masks.at[i + 1], end) - max(masks.at[i], begin)
    return Reading(total)


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


def _find_edges(counter: Series) -> list[_Edges]:
    """Every run of counter changes; a decrease ends a run, and no edge is known at it."""
    runs: list[_Edges] = []
    at: list[float] = []
    values: list[float] = []
    for i in range(1, len(counter.at)):
        earlier, value = counter.values[i - 1], counter.values[i]
        if value < earlier:
            if at:
                runs.append(_Edges(tuple(at), tuple(values)))
            at, values = [], []
        elif value > earlier:
            at.append(counter.at[i])
            values.append(value)
    if at:
        runs.append(_Edges(tuple(at), tuple(values)))
    return runs


def _say_uncovered(counter: Series, runs: Sequence[_Edges], window: Window) -> str:
    for earlier, later in pairwise(zip(counter.at, counter.values, strict=True)):
        if later[1] < earlier[1]:
            before = max(
                (run.at[-1] for run in runs if run.at[-1] <= earlier[0]), default=earlier[0]
            )
            after = min((run.at[0] for run in runs if run.at[0] >= later[0]), default=later[0])
            if window[0] < after and window[1] > before:
                return RELOADED
    return counter.reason_without(window[1]) or counter.reason or NOT_COVERED


def _longest_gap_at(at: Sequence[float], window: Window) -> float:
    """The longest gap that one of the window's two edges falls into."""
    after = [i for i in (bisect_right(at, edge) for edge in window) if 0 < i < len(at)]
    return max((at[i] - at[i - 1] for i in after), default=0.0)


def _silence_limit(at: Sequence[float]) -> float:
    gaps = _gaps(at)
    usual = statistics.median(gaps) if gaps else 0.0
    return max(MAX_SILENT_GAPS * usual, MIN_SILENT_SECONDS)


def _gaps(at: Sequence[float]) -> list[float]:
    return [later - earlier for earlier, later in pairwise(at)]


def _interpolate(at: Sequence[float], values: Sequence[float], moment: float) -> float:
    i = bisect_right(at, moment)
    if i >= len(at):
        return values[-1]
    share = (moment - at[i - 1]) / (at[i] - at[i - 1])
    return values[i - 1] + share * (values[i] - values[i - 1])
