"""What do all fixes give back? Each alone, each after those above it, and the step then."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from diagnose.records.diagnosis import Expected, ScriptFinding
from diagnose.records.script import Cause
from diagnose.records.stats import Interval

# These are not part of the windows in which everything was changed at once.
_BESIDE: tuple[Cause, ...] = (
    "optimizer",
    "batch",
    "evaluation",
    "precision",
    "communication",
    "straggler",
)


def add_up(
    findings: Sequence[ScriptFinding], together: Interval | None, mean: float
) -> list[ScriptFinding]:
    """Gains may overlap: no more than all changes at once gave back can come of them, where that
    was measured, and never more than the step.
    """
    told: list[ScriptFinding] = []
    of_all, tried = mean * 1e3, 0.0
    for each in findings:
        least = left = most = max(0.0, of_all)
        if together is not None and each.verified and each.cause not in _BESIDE:
            ends = together.ends or (together.center, together.center)
            least, left, most = (
                min(of_all, max(0.0, end * 1e3 - tried))
                for end in (ends[0], together.center, ends[1])
            )
            tried += each.gain_ms
        after = min(each.gain_ms, left)
        of_all -= after
        low, high = each.gain_ci
        low = min(after, least, max(0.0, low - (each.gain_ms - after)))
        told.append(replace(each, after_ms=after, after_ci=(low, max(after, min(high, most)))))
    return told


def expect(findings: Sequence[ScriptFinding], mean: float) -> Expected | None:
    fixes = [each for each in findings if each.gain_ms > 0]
    if not fixes:
        return None
    step = mean * 1e3
    center = step - sum(each.after_ms for each in fixes)
    # The errors of different trials do not all point the same way.
    up, down = (
        sum((each.after_ms - each.after_ci[end]) ** 2 for each in fixes) ** 0.5 for end in (0, 1)
    )
    return Expected(max(0.0, center), max(0.0, center - down), max(0.0, center + up))
