"""Which is the largest batch that fits? The exact one, in at most 2 + 2 log2(it) probes.

Every batch L is promised 2 + 2 log2(L) probes. The largest one can be told in time from all
others that are still possible as long as the sum of 2**-(probes that are left to L) is at most 1:
the promises never fall from L to L + 1, and for such lengths Kraft's inequality is enough for a
search that only asks "does it fit?". So the next probe may be any batch that keeps this sum on
both sides of it. A guess is tried at once if it does, and otherwise as nearly as it may be:
without a good guess this is a search by doubling and halving, with one it takes a few probes.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable, Sequence

from diagnose.records.batch_size import Probe, largest_fitting, smallest_failing

# No job has so many samples; it only keeps the search finite where everything fits.
LARGEST_BATCH = 1 << 40
# Above every promise, so that the sums are whole numbers and the comparison is exact.
_UNIT = 1 << (4 * LARGEST_BATCH.bit_length())


def no_guess(probes: Sequence[Probe]) -> int | None:
    return None


def no_ceiling(probes: Sequence[Probe]) -> int:
    return LARGEST_BATCH


def search(
    probe: Callable[[int], Probe],
    guess: Callable[[Sequence[Probe]], int | None] = no_guess,
    ceiling: Callable[[Sequence[Probe]], int] = no_ceiling,
    attempts: int | None = None,
) -> list[Probe]:
    """All probes that were made; the last ones enclose the answer unless something cut it short.

    `guess` and `ceiling` see the probes so far: the likely limit, and the largest batch that is
    worth trying. `attempts` ends the search early.
    """
    made = [probe(1)]
    while attempts is None or len(made) < attempts:
        batch = choose_next(made, guess(made), ceiling(made))
        if batch is None:
            break
        made.append(probe(batch))
    return made


def choose_next(made: Sequence[Probe], guess: int | None, ceiling: int) -> int | None:
    """The batch to try next; None where nothing between fit and failure is left."""
    low, failing = largest_fitting(made), smallest_failing(made)
    high = min(failing or LARGEST_BATCH + 1, ceiling + 1)
    if low == 0 or high - low <= 1:
        return None
    wish = _wish(low, high, failing is not None, guess)
    return _nearest_allowed(low, high, len(made), wish)


def probes_allowed(batch: int) -> int:
    """2 + 2 log2(batch), rounded down, without the rounding of a logarithm."""
    return 1 + (batch * batch).bit_length()


def _wish(low: int, high: int, bounded: bool, guess: int | None) -> int:
    """The guess, then its neighbour, then ever further away from it; else double or halve."""
    middle = (low + high) // 2 if bounded else min(2 * low, high - 1)
    if guess is None:
        return middle
    if low < guess < high:
        return guess
    away = 2 * low - guess + 1 if guess <= low else 2 * high - guess - 1
    return away if low < away < high else middle


def _nearest_allowed(low: int, high: int, used: int, wish: int) -> int:
    """The batch nearest to the wish after which every promise can still be kept."""
    candidates = range(low + 1, high)
    # If it fails, everything below is still possible: the fewer the better.
    too_high = bisect.bisect_left(
        candidates, True, key=lambda batch: not _can_keep(low, batch, used + 1)
    )
    # If it fits, everything from it on is still possible.
    high_enough = bisect.bisect_left(
        candidates, True, key=lambda batch: _can_keep(batch, high, used + 1)
    )
    place = max(min(wish - candidates.start, too_high - 1), high_enough, 0)
    return candidates[min(place, len(candidates) - 1)]


def _can_keep(low: int, high: int, used: int) -> bool:
    """Whether all answers from low to below high can be told apart with the probes left to each."""
    return (_weight_below(high) - _weight_below(low)) << used <= _UNIT


def _weight_below(batch: int) -> int:
    """The sum of 2**-probes_allowed over all smaller batches, in units of 1 / _UNIT."""
    step = bisect.bisect_right(_STEPS, batch, key=lambda each: each[0]) - 1
    first, below = _STEPS[step]
    return below + (batch - first) * (_UNIT >> probes_allowed(first))


def _find_steps() -> list[tuple[int, int]]:
    """Where the promise grows by one, with the weight of everything below."""
    steps, below = [(1, 0)], 0
    while (first := steps[-1][0]) <= LARGEST_BATCH:
        allowed = probes_allowed(first)
        end = math.isqrt((1 << (allowed - 1)) - 1) + 1
        below += (end - first) * (_UNIT >> allowed)
        steps.append((end, below))
    return steps


_STEPS = _find_steps()
