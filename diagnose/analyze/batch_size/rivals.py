"""How many probes do the usual rules need, and what do they find? Pure arithmetic on a limit."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

# What the rules of the libraries begin with unless told.
LIGHTNING_START = 2
ACCELERATE_START = 128
ACCELERATE_FACTOR = 0.9
# Doubling ends here at the latest (Lightning's own limit of trials).
MOST_DOUBLINGS = 25


@dataclass(frozen=True)
class Attempt:
    """What a rule ends with."""

    batch: int
    probes: int


def halve(limit: int, start: int) -> Attempt:
    """Down from the start until it fits."""
    return _shrink(limit, start, lambda batch: batch // 2)


def shrink_by_tenths(limit: int, start: int) -> Attempt:
    """Down by a tenth each time."""
    return _shrink(limit, start, lambda batch: int(batch * ACCELERATE_FACTOR))


def double_and_bisect(limit: int, start: int) -> Attempt:
    """Up by powers of two, then bisection between the last fit and the first failure."""
    low, batch, probes = 0, start, 1
    while batch <= limit and probes <= MOST_DOUBLINGS:
        low, batch, probes = batch, 2 * batch, probes + 1
    high = batch
    while high - low > 1:
        middle, probes = (low + high) // 2, probes + 1
        low, high = (middle, high) if middle <= limit else (low, middle)
    return Attempt(low, probes)


def _shrink(limit: int, start: int, smaller: Callable[[int], int]) -> Attempt:
    batch, probes = start, 1
    while batch > limit and batch > 0:
        batch = smaller(batch)
        probes += batch > 0
    return Attempt(batch, probes)


def list_rivals(limit: int, start: int) -> Mapping[str, Attempt]:
    """The same case as the usual rules would have gone through it."""
    return {
        f"halving from {start}": halve(limit, start),
        f"Lightning: doubling from {LIGHTNING_START}, then bisection": double_and_bisect(
            limit, LIGHTNING_START
        ),
        f"accelerate, older: halving from {ACCELERATE_START}": halve(limit, ACCELERATE_START),
        f"accelerate: times {ACCELERATE_FACTOR} from {ACCELERATE_START}": shrink_by_tenths(
            limit, ACCELERATE_START
        ),
    }


def knows_limit(name: str, limit: int, start: int) -> bool:
    """Whether a rule that ends at the limit has also seen the next batch fail.

    It has if it would have ended there, had that batch fitted.
    """
    found, with_more_room = (list_rivals(each, start)[name].batch for each in (limit, limit + 1))
    return found == limit and with_more_room == limit + 1
