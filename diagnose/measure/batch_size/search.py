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
from dataclasses import replace

from diagnose.records.batch_size import Probe, largest_fitting, smallest_failing

# Fragmentation, other streams and longer inputs need some room (a usual reserve).
MOST_SHARE = 0.9
# Drivers that move memory to the host do not fail, they become several times slower.
MOST_SLOWDOWN = 1.5
# What was moved, hundreds of MB at the least, takes longer than this over any bus.
SHORTEST_JUDGED_SECONDS = 0.010
# No job has so many samples; it only keeps the search finite where everything fits.
LARGEST_BATCH = 1 << 40
# Above every promise, so that the sums are whole numbers and the comparison is exact.
_UNIT = 1 << (4 * LARGEST_BATCH.bit_length())


def search(
    probe: Callable[[int], Probe],
    guess: Callable[[Sequence[Probe]], int | None] = lambda probes: None,
    ceiling: Callable[[Sequence[Probe]], int] = lambda probes: LARGEST_BATCH,
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


def judge(probe: Probe, earlier: Sequence[Probe]) -> Probe:
    """The probe, with its status lowered if its memory or its time says so.

    Without earlier ones only the memory is judged. So it is on the CPU, where a step may take
    several times longer for other reasons (a cache that overflows, a neighbour on the second
    core) and where what was swapped out can be read.
    """
    if not probe.fits:
        return probe
    peak, available = probe.peak_bytes.value, probe.available_bytes.value
    if peak is not None and available is not None and peak > MOST_SHARE * available:
        reason = (
            f"its peak of {peak / 1e6:.1f} MB is over {MOST_SHARE:.0%} of the "
            f"{available / 1e6:.1f} MB that were free"
        )
        return replace(probe, status="over the limit", reason=reason)
    if is_slow(probe, earlier):
        smaller = _nearest_smaller(probe, earlier)
        assert smaller is not None
        factor = min(probe.step_seconds) / _extrapolate(smaller, probe.batch)
        reason = (
            f"a step takes {factor:.1f} times what batch {smaller.batch} leads to expect: "
            "memory is probably moved to the host"
        )
        return replace(probe, status="spills", reason=reason)
    return probe


def explain_refusal(probe: Probe, advice: str) -> str:
    """Why not even this batch can be used, what it needs, and what to do."""
    text = f"batch {probe.batch} does not fit: {probe.reason}"
    taken, free = probe.peak_bytes.value, probe.available_bytes.value
    if probe.status == "out of memory" and taken is not None and free is not None:
        text += (
            f"; it had taken {taken / 1e6:.1f} MB of the {free / 1e6:.1f} MB that were free and "
            "needs that allocation on top"
        )
    if probe.status in ("out of memory", "over the limit"):
        text += f"; use {advice} or a device with more memory"
    return text


def is_slow(probe: Probe, earlier: Sequence[Probe]) -> bool:
    """Slower than a straight line from the next smaller batch allows.

    The line goes through 0, so that a fixed cost per step never counts against a larger batch,
    and the fastest step decides: spilling slows all of them down, a neighbour only some.
    """
    smaller = _nearest_smaller(probe, earlier)
    if smaller is None or not probe.step_seconds:
        return False
    fastest = min(probe.step_seconds)
    limit = MOST_SLOWDOWN * _extrapolate(smaller, probe.batch)
    return fastest > max(limit, SHORTEST_JUDGED_SECONDS)


def _nearest_smaller(probe: Probe, earlier: Sequence[Probe]) -> Probe | None:
    fitting = [each for each in earlier if each.fits and each.batch < probe.batch]
    return max(
        (each for each in fitting if each.step_seconds), key=lambda each: each.batch, default=None
    )


def _extrapolate(smaller: Probe, batch: int) -> float:
    return min(smaller.step_seconds) * batch / smaller.batch
