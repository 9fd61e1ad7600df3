"""How fast is one all-reduce? Times and bandwidths of one size, and which rank is late.

A collective has ended when its last rank has, so each time is the slowest rank's. GB is 10^9.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import accumulate
from math import comb

from diagnose.analyze.line_fit import Fit, Point, Unfit, fit_line
from diagnose.records.limits import SHORTEST_SLOT_SECONDS
from diagnose.records.ranks import BandwidthRecord, ByRank, SizeResult
from diagnose.records.stats import CONFIDENCE, Interval, relative_iqr

CORRUPT = "CORRUPT"
ALL_GRADIENTS = "all gradients"

# One rank over the mean of all: beyond this the others wait visibly (a proposal).
STRAGGLER_RATIO = 1.2


@dataclass(frozen=True)
class Speed:
    """One size in one mode: the time of an all-reduce and what it means as bandwidth."""

    nbytes: int
    seconds: Interval  # median over iterations of the slowest rank
    samples: int
    relative_iqr: float  # of the samples: how widely they scatter
    world_size: int

    @property
    def algorithm_rate(self) -> float:
        """Bytes of the tensor per second."""
        return self.nbytes / self.seconds.center

    @property
    def bus_rate(self) -> float | None:
        """Bytes per second on each link of a ring; one rank alone sends nothing."""
        if self.world_size < 2:
            return None
        return self.algorithm_rate * 2 * (self.world_size - 1) / self.world_size


@dataclass(frozen=True)
class SizeSpeed:
    """What one size tells. Without `single` and `window` the reason says why."""

    size: SizeResult
    single: Speed | None  # one all-reduce after a barrier
    window: Speed | None  # per all-reduce of a window of them, back to back
    reason: str
    lateness: tuple[float, ...]  # by rank: its time over the mean of all, median over iterations

    @property
    def best(self) -> Speed | None:
        """Back to back where measured: that is how DDP sends its buckets."""
        return self.window or self.single

    @property
    def is_corrupt(self) -> bool:
        size = self.size
        return size.status == "invalid" or bool(size.wrong_before) or bool(size.wrong_after)


def measure_sizes(record: BandwidthRecord) -> list[SizeSpeed]:
    """Smallest first: sizes of the sweep and of the model were measured apart."""
    ordered = sorted(record.sizes, key=lambda size: size.nbytes)
    return [summarize(size, len(record.ranks)) for size in ordered]


def summarize(size: SizeResult, world_size: int) -> SizeSpeed:
    """No bandwidth for a wrong sum: its times are those of something else."""
    untimed = SizeSpeed(size, None, None, size.reason or f"ended as {size.status}", ())
    if size.status != "done" or untimed.is_corrupt:
        return untimed
    single = _speed(size.nbytes, size.latency_seconds, 1, world_size)
    window = _speed(size.nbytes, size.window_seconds, size.iterations_per_window, world_size)
    if single is None and window is None:
        return replace(untimed, reason="no usable time was recorded")
    lateness = _lateness(size.latency_seconds or size.window_seconds)
    return SizeSpeed(size, single, window, "", lateness)


def fit_sizes(sizes: Sequence[SizeSpeed]) -> Fit | Unfit:
    """The line of single all-reduces; a window hides the latency that alpha is."""
    speeds = [each.single for each in sizes if each.single is not None]
    return fit_line([Point(each.nbytes, each.seconds.center) for each in speeds])


def slowest_rank(size: SizeSpeed) -> int:
    return size.lateness.index(max(size.lateness))


def median_interval(values: Sequence[float]) -> Interval:
    """The median with the exact interval of the sign test, which assumes no symmetry."""
    ordered, rank = sorted(values), _sign_rank(len(values))
    center = statistics.median(ordered)
    return (
        Interval(center, ordered[rank - 1], ordered[-rank])
        if rank
        else Interval(center, None, None)
    )


@cache
def _sign_rank(count: int) -> int:
    """How many ordered values lie outside the interval on each side, plus one; 0: none exists."""
    below = accumulate(comb(count, successes) for successes in range(count + 1))
    return sum(each / 2**count <= (1 - CONFIDENCE) / 2 for each in below)


def _speed(nbytes: int, by_rank: ByRank, all_reduces: int, world_size: int) -> Speed | None:
    slowest = [max(times) for times in zip(*by_rank, strict=False)]
    # A window of none and a time below the clock's tick are no measurement.
    if not slowest or all_reduces < 1 or nbytes < 1:
        return None
    if min(slowest) / all_reduces < SHORTEST_SLOT_SECONDS:
        return None
    seconds = median_interval(slowest).map(lambda window: window / all_reduces)
    return Speed(nbytes, seconds, len(slowest), relative_iqr(slowest), world_size)


def _lateness(by_rank: ByRank) -> tuple[float, ...]:
    means = [statistics.fmean(times) for times in zip(*by_rank, strict=False)]
    if not means or min(means) < SHORTEST_SLOT_SECONDS:
        return ()
    return tuple(
        statistics.median(time / mean for time, mean in zip(times, means, strict=False))
        for times in by_rank
    )
