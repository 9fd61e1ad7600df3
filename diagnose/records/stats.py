"""How sure is a number? Order statistics that stay honest with few, noisy, drifting samples.

Both halves need these (the clock to know when to stop, the report to print), so they live
beside the data types. Standard library only.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

CONFIDENCE = 0.95
# Below six values no two-sided 95 % Wilcoxon interval exists (2 / 2**5 > 5 %).
FEWEST_FOR_INTERVAL = 6
# One wild value moves as many pairwise means as there are values. From twelve on the 95 %
# interval leaves out more than that at each end, so a single clock step cannot widen it.
FEWEST_FOR_ROBUST_INTERVAL = 12
# Differences below one percent are nobody's speed-up, even where they can be proven (criterion's
# noise threshold).
SMALLEST_MARGIN = 0.01
# The exact distribution is cheap to here; above, the normal approximation is good to the rank.
_EXACT_UP_TO = 80
# exp of more is no float.
_LARGEST_EXPONENT = 700.0


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

    @property
    def ends(self) -> tuple[float, float] | None:
        """Both ends, where there is an interval."""
        return None if self.low is None or self.high is None else (self.low, self.high)

    def map(self, function: Callable[[float], float]) -> Interval:
        """The same function of every value; one that falls swaps the ends."""
        if self.ends is None:
            return Interval(function(self.center), None, None)
        low, high = sorted(map(function, self.ends))
        return Interval(function(self.center), low, high)

    def is_above(self, bound: float) -> bool:
        """Whether there is an interval, and all of it is."""
        return self.low is not None and self.low > bound

    def is_below(self, bound: float) -> bool:
        return self.high is not None and self.high < bound


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
    ways = _signed_rank_ways(count)
    below, k = 0, 0
    for score, number in enumerate(ways):
        below += number
        if below / 2**count > tail:
            break
        k = score + 1
    return k


@cache
def _signed_rank_ways(count: int) -> tuple[int, ...]:
    """How many of the 2**count patterns of signs give each sum of positive ranks."""
    total = count * (count + 1) // 2
    ways = [1] + [0] * total
    for rank in range(1, count + 1):
        for score in range(total, rank - 1, -1):
            ways[score] += ways[score - rank]
    return tuple(ways)


def log_ratios(before: Sequence[float], after: Sequence[float]) -> list[float]:
    """ln(before / after) of every block that has both; above 0 the second side is faster."""
    pairs = list(zip(before, after, strict=False))
    if not pairs:
        raise ValueError("no block has both sides")
    if any(a <= 0 or b <= 0 for a, b in pairs):
        raise ValueError("a slot took no time: the clock cannot resolve it")
    return [math.log(a / b) for a, b in pairs]


def log_ratio_interval(
    before: Sequence[float], after: Sequence[float], confidence: float = CONFIDENCE
) -> Interval:
    """The logarithm of the speed-up, from pairs that ran in the same block.

    What slows a whole block down (drift, a neighbour, a lower clock) cancels in its ratio.
    """
    return hodges_lehmann(log_ratios(before, after), confidence)


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjusted so that all together are wrong in at most as many cases as one alone."""
    order = sorted(range(len(p_values)), key=lambda index: p_values[index])
    adjusted, highest = [0.0] * len(p_values), 0.0
    for place, index in enumerate(order):
        highest = max(highest, min(1.0, p_values[index] * (len(p_values) - place)))
        adjusted[index] = highest
    return adjusted


def fewest_for_family(family: int, confidence: float = CONFIDENCE) -> int:
    """Blocks below which no comparison of so large a family can be proven, however clear.

    The smallest p of n blocks is 2 / 2**n, and Holm multiplies the smallest by the family.
    """
    needed = math.ceil(math.log2(2 * max(1, family) / (1 - confidence)) - 1e-9)
    return max(FEWEST_FOR_INTERVAL, needed)


@cache
def student_quantile(probability: float, freedom: int) -> float:
    """Student's t below which this share lies; whole degrees of freedom have a closed law."""
    if not 0 < probability < 1 or freedom < 1:
        raise ValueError(f"no quantile for p={probability} and {freedom} degrees of freedom")
    if probability < 0.5:
        return -student_quantile(1 - probability, freedom)
    # In the angle atan(t / sqrt(freedom)) the whole line is a bounded search.
    low, high = 0.0, math.pi / 2
    for _ in range(100):
        middle = (low + high) / 2
        if _student_share(middle, freedom) < probability:
            low = middle
        else:
            high = middle
    return math.tan(low) * math.sqrt(freedom)


def _student_share(angle: float, freedom: int) -> float:
    """Student's distribution function at t = sqrt(freedom) tan(angle), as a finite sum."""
    odd = freedom % 2
    term, total = math.cos(angle) if odd else 1.0, 0.0
    for power in range(odd, freedom - 1, 2):
        total += term
        term *= math.cos(angle) ** 2 * (power + 1) / (power + 2)
    inside = math.sin(angle) * total
    if odd:
        inside = (angle + inside) * 2 / math.pi
    return (1 + inside) / 2


def paired_t(values: Sequence[float], confidence: float = CONFIDENCE) -> Interval:
    """Mean with Student's interval: the cross-check that assumes normal differences."""
    center, count = statistics.fmean(values), len(values)
    if count < 2:
        return Interval(center, None, None)
    error = statistics.stdev(values) / math.sqrt(count)
    reach = student_quantile((1 + confidence) / 2, count - 1) * error
    return Interval(center, center - reach, center + reach)


def minimum_detectable_effect(values: Sequence[float]) -> float | None:
    """The smallest speed-up that blocks with this scatter would show in 80 % of cases.

    `values` are logarithms of ratios; the answer is a share: 0.02 stands for 1.02x.
    """
    count = len(values)
    if count < 2:
        return None
    error = statistics.stdev(values) / math.sqrt(count)
    quantiles = student_quantile(0.975, count - 1) + student_quantile(0.80, count - 1)
    # Two wild blocks have no finite answer worth printing.
    exponent = quantiles * error
    return math.expm1(exponent) if exponent < _LARGEST_EXPONENT else None


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
