"""How sure is a number? Order statistics that stay honest with few, noisy, drifting samples.

Both halves need these (the clock to know when to stop, the report to print), so they live
beside the data types. Standard library only.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

CONFIDENCE = 0.95
# Below six values no two-sided 95 % Wilcoxon interval exists (2 / 2**5 > 5 %).
FEWEST_FOR_INTERVAL = 6
# The exact distribution is cheap to here; above, the normal approximation is good to the rank.
_EXACT_UP_TO = 80


@dataclass(frozen=True)
class Interval:
    """A centre with its interval; `low` and `high` are None where no interval exists."""

    center: float
    low: float | None
    high: float | None

    @property
    def half_width(self) -> float | None:
        if self.low is None or self.high is None:
            return None
        return (self.high - self.low) / 2


def hodges_lehmann(values: Sequence[float], confidence: float = CONFIDENCE) -> Interval:
    """Median of the pairwise means, with the interval of the inverted signed-rank test.

    Unlike a bootstrap of few values, its coverage holds from six values on, and it does not
    assume a normal distribution.
    """
    if not values:
        raise ValueError("no values")
    means = sorted(
        (values[i] + values[j]) / 2 for i in range(len(values)) for j in range(i, len(values))
    )
    rank = wilcoxon_rank(len(values), confidence)
    if rank == 0:
        return Interval(statistics.median(means), None, None)
    return Interval(statistics.median(means), means[rank - 1], means[-rank])


@cache
def wilcoxon_rank(count: int, confidence: float = CONFIDENCE) -> int:
    """The k of [w(k), w(M+1-k)]: how many Walsh averages lie outside on each side, plus one."""
    tail = (1 - confidence) / 2
    total = count * (count + 1) // 2
    if count > _EXACT_UP_TO:
        spread = math.sqrt(count * (count + 1) * (2 * count + 1) / 24)
        return max(0, math.floor(total / 2 - statistics.NormalDist().inv_cdf(1 - tail) * spread))
    ways = [1] + [0] * total
    for rank in range(1, count + 1):
        for score in range(total, rank - 1, -1):
            ways[score] += ways[score - rank]
    below, k = 0, 0
    for score, number in enumerate(ways):
        below += number
        if below / 2**count > tail:
            break
        k = score + 1
    return k


def quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    if len(values) == 1:
        return values[0], values[0], values[0]
    first, second, third = statistics.quantiles(values, n=4, method="inclusive")
    return first, second, third


def median_absolute_deviation(values: Sequence[float]) -> float:
    center = statistics.median(values)
    return statistics.median(abs(value - center) for value in values)


@dataclass(frozen=True)
class Outliers:
    """Counted, never deleted (Tukey's fences, as criterion does)."""

    mild: int
    severe: int
    slow_first: bool


def outliers(values: Sequence[float]) -> Outliers:
    first, _, third = quartiles(values)
    spread = third - first

    def beyond(fences: float, value: float) -> bool:
        return value < first - fences * spread or value > third + fences * spread

    severe = sum(beyond(3.0, value) for value in values)
    mild = sum(beyond(1.5, value) for value in values) - severe
    return Outliers(mild, severe, len(values) > 1 and values[0] > third + 1.5 * spread)


def relative_iqr(values: Sequence[float]) -> float:
    first, middle, third = quartiles(values)
    return (third - first) / middle if middle else 0.0


def percentile_bound(values: Sequence[float], share: float) -> float | None:
    """A bound that holds `share` of all steps with 99 % confidence, or None with too few.

    The rule of MLPerf's LoadGen: allow t values above the bound where a binomial law says
    that t or fewer would be seen by chance in under 1 % of cases.
    """
    ordered, count = sorted(values), len(values)
    best, chance = None, 0.0
    for above in range(count):
        # In logarithms: the binomial coefficient of a few thousand steps is no float.
        chance += math.exp(
            math.lgamma(count + 1)
            - math.lgamma(above + 1)
            - math.lgamma(count - above + 1)
            + (count - above) * math.log(share)
            + above * math.log1p(-share)
        )
        if chance > 0.01:
            break
        if above > 0:
            best = ordered[count - above - 1]
    return best
