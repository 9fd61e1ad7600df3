"""What do latency and bandwidth say of times that belong to sizes? The line t = alpha + S / B.

Collectives switch their protocol with the size, so one least-squares line over all sizes
describes none of them: latency comes from the smallest sizes, bandwidth from the largest.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

# Up to here the bytes themselves cost nothing beside the start of a transfer on any link.
LATENCY_UP_TO_BYTES = 4096
# A line that misses a measured time by more does not describe the link (a proposal).
LARGEST_RESIDUAL = 0.25
# Two points determine a line, three can contradict it.
_FEWEST_POINTS = 3
# A petabyte per second: no link is faster, so a flatter line is none.
_FLATTEST_SLOPE = 1e-15


@dataclass(frozen=True)
class Point:
    """One size and the time that it takes."""

    nbytes: int
    seconds: float


@dataclass(frozen=True)
class Fit:
    """Latency from the smallest sizes, bandwidth from the largest, and how well both serve."""

    alpha_seconds: float
    bytes_per_second: float
    worst_residual: float  # largest |measured - line| / measured
    worst_bytes: int

    @property
    def half_bytes(self) -> float:
        """The size that reaches half the bandwidth."""
        return self.alpha_seconds * self.bytes_per_second

    @property
    def is_one_line(self) -> bool:
        return self.worst_residual <= LARGEST_RESIDUAL

    def predict_seconds(self, nbytes: float) -> float:
        return self.alpha_seconds + nbytes / self.bytes_per_second


@dataclass(frozen=True)
class Unfit:
    """Why no line could be drawn."""

    reason: str


def fit_line(points: Sequence[Point]) -> Fit | Unfit:
    ordered = _merge(points)
    small = [point.seconds for point in ordered if point.nbytes <= LATENCY_UP_TO_BYTES]
    if not small:
        return Unfit(f"no size up to {LATENCY_UP_TO_BYTES} bytes was measured")
    if len(ordered) < _FEWEST_POINTS:
        return Unfit(f"fewer than {_FEWEST_POINTS} sizes were measured")
    largest_third = max(2, math.ceil(len(ordered) / 3))
    slope = theil_sen_slope(ordered[-largest_third:])
    if slope <= _FLATTEST_SLOPE:
        return Unfit("the time does not grow with the size among the largest sizes")
    alpha = statistics.median(small)
    misses = [
        (abs(alpha + slope * point.nbytes - point.seconds) / point.seconds, point.nbytes)
        for point in ordered
    ]
    worst, nbytes = max(misses)
    return Fit(alpha, 1 / slope, worst, nbytes)


def theil_sen_slope(points: Sequence[Point]) -> float:
    """Median of the slopes of all pairs: one disturbed size cannot tilt it. One size has none."""
    slopes = [
        (second.seconds - first.seconds) / (second.nbytes - first.nbytes)
        for place, first in enumerate(points)
        for second in points[place + 1 :]
        if second.nbytes != first.nbytes
    ]
    return statistics.median(slopes) if slopes else 0.0


def _merge(points: Sequence[Point]) -> list[Point]:
    """One point per size, smallest first: a size may have been measured for two purposes."""
    times: dict[int, list[float]] = {}
    for point in points:
        times.setdefault(point.nbytes, []).append(point.seconds)
    return [Point(nbytes, statistics.median(times[nbytes])) for nbytes in sorted(times)]
