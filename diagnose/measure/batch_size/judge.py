"""Does a batch that ran also fit? Not if it takes the last of the memory or begins to spill."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from diagnose.records.batch_size import Probe

# Fragmentation, other streams and longer inputs need some room (a usual reserve).
MOST_SHARE = 0.9
# Drivers that move memory to the host do not fail, they become several times slower.
MOST_SLOWDOWN = 1.5
# What was moved, hundreds of MB at the least, takes longer than this over any bus.
SHORTEST_JUDGED_SECONDS = 0.010


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
