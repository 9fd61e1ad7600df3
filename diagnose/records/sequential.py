"""When may one stop and tell? After any block: an interval that holds at all of them at once.

Every block times three windows in random order: two of the side "before", one of "after". Divide
the time of "before" by the true ratio, and nothing tells the three apart: "after" is the fastest,
the middle or the slowest of them with a chance of 1/3 each, whatever the noise is (spikes, heavy
tails, drift, a neighbor that stays). So one bets on its rank at fair odds; the wealth is a
martingale at the true ratio, and exceeds 100 with a chance of at most 1 % at any time (Ville). The
ratios at which the wealth is below that are the interval. Only the order of the windows, which is
drawn here, has to be random; nothing is assumed about the windows themselves.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import pairwise
from typing import Literal, NamedTuple

from diagnose.records.stats import SMALLEST_MARGIN, Interval, hodges_lehmann

SpeedVerdict = Literal["FASTER", "SLOWER", "SAME", "INCONCLUSIVE"]

CONFIDENCE = 0.99
# The chance of any false verdict among all comparisons of a record.
FAMILY_ERROR = 0.05
# Of "before" by "after": an interval that lies inside shows that there is no change worth a word.
SAME_MARGIN = 0.03
# Half of the stake is on "after" being faster, half on slower. How often it is the first, the
# middle and the last of three is learned from the blocks; this is what is believed before them
# (`python -m bench.prove.rule` shows what other beliefs cost).
_BELIEF = (3.0, 1.0, 0.3)


class Block(NamedTuple):
    """Seconds per step of the three windows of one block."""

    before: float
    again: float  # the same side once more
    after: float


def log_wealth(first: int, middle: int, last: int) -> float:
    """Of the bet, after "after" was the fastest, the middle and the slowest so often."""
    counts = (first, middle, last)
    faster, slower = (_log_odds(counts, belief) for belief in (_BELIEF, _BELIEF[::-1]))
    high, low = max(faster, slower), min(faster, slower)
    return high + math.log1p(math.exp(low - high)) - math.log(2)


def _log_odds(counts: Sequence[int], belief: Sequence[float]) -> float:
    """How much likelier these counts are if the chances are learned than if each is 1/3."""
    number, weight = sum(counts), sum(belief)
    learned = sum(
        math.lgamma(prior + count) - math.lgamma(prior)
        for prior, count in zip(belief, counts, strict=True)
    )
    return number * math.log(3) + math.lgamma(weight) - math.lgamma(weight + number) + learned


def anytime_p(blocks: Sequence[Block]) -> float:
    """Of "the ratio is 1", whenever one looks: what a bet against it has not won yet."""
    first = sum(each.after < min(each.before, each.again) for each in blocks)
    last = sum(each.after > max(each.before, each.again) for each in blocks)
    return min(1.0, math.exp(-log_wealth(first, len(blocks) - first - last, last)))


def fewest_blocks(family: int = 1) -> int:
    """Below which nothing is proven, however clear: by Holm, the best of so many comparisons."""
    limit = min(1 - CONFIDENCE, FAMILY_ERROR / max(1, family))
    count = 1
    while math.exp(-log_wealth(count, 0, 0)) > limit:
        count += 1
    return count


def ratio_interval(blocks: Sequence[Block], confidence: float = CONFIDENCE) -> Interval:
    """Of the time before by the time after: above 1 is faster. It holds whenever one looks."""
    if not blocks:
        raise ValueError("no block")
    # Where "after" would change its rank, block by block.
    lows = sorted(math.log(min(each.before, each.again) / each.after) for each in blocks)
    highs = sorted(math.log(max(each.before, each.again) / each.after) for each in blocks)
    middles = [
        (math.log(each.before) + math.log(each.again)) / 2 - math.log(each.after) for each in blocks
    ]
    center = hodges_lehmann(middles).center
    limit, number = math.log(1 / (1 - confidence)), len(blocks)

    def is_open(ratio: float) -> bool:
        first, last = number - bisect_right(lows, ratio), bisect_left(highs, ratio)
        return log_wealth(first, number - first - last, last) < limit

    ends = sorted({*lows, *highs})
    if is_open(ends[0] - 1) or is_open(ends[-1] + 1):
        return Interval(math.exp(center), None, None)
    kept = [(a, b) for a, b in pairwise(ends) if is_open((a + b) / 2)]
    # Few blocks that agree to the last digit leave nothing between them.
    low, high = (kept[0][0], kept[-1][1]) if kept else (center, center)
    return Interval(math.exp(min(max(center, low), high)), math.exp(low), math.exp(high))


def decide(interval: Interval, margin: float = SMALLEST_MARGIN) -> SpeedVerdict:
    """What the interval proves."""
    if interval.is_above(1 + margin):
        return "FASTER"
    if interval.is_below(1 / (1 + margin)):
        return "SLOWER"
    if interval.is_above(1 / (1 + SAME_MARGIN)) and interval.is_below(1 + SAME_MARGIN):
        return "SAME"
    return "INCONCLUSIVE"


def passes_gate(interval: Interval, slower: float) -> bool | None:
    """Whether "after" is not slower by more than this share; None if that is open."""
    if interval.is_below(1 / (1 + slower)):
        return False
    return True if interval.is_above(1 / (1 + slower)) else None
