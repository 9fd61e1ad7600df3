"""Has the warm-up ended? Two neighbouring windows of steps must look alike.

The conditions are pyperf's, with the divisions guarded, plus the allocator's: a step whose
memory still grows is not the step that users run for hours.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from diagnose.records.stats import median_absolute_deviation, quartiles

MEAN_MAY_FALL = 0.50
MEAN_MAY_RISE = 0.10
QUARTILES_MAY_MOVE = 0.05
SPREAD_MAY_MOVE = 0.10
# A change of spread below this share of the median cannot matter to any verdict; without it
# the relative condition fails by chance most of the time, because a spread is itself noisy.
SPREAD_THAT_MATTERS = 0.01
# A second window is not needed to know that one step is steady.
SMALLEST_WINDOW = 2


def unsteady_reason(seconds: Sequence[float], footprints: Sequence[int | None], window: int) -> str:
    """The first unmet condition, or "" when the last two windows agree."""
    if window < SMALLEST_WINDOW:
        return ""
    if len(seconds) < 2 * window:
        return f"only {len(seconds)} of {2 * window} warm-up steps fitted"
    before, after = seconds[-2 * window : -window], seconds[-window:]
    held = {each for each in footprints[-window:] if each is not None}
    if len(held) > 1:
        return "the allocator still grows"
    first, _, third = quartiles(before)
    if before[0] > third + 1.5 * (third - first):
        return "the window starts with an outlier"
    change = _relative(statistics.fmean(after), statistics.fmean(before))
    if not -MEAN_MAY_FALL <= change <= MEAN_MAY_RISE:
        return f"the mean still moves by {change:+.0%}"
    for name, index in (("lower", 0), ("upper", 2)):
        change = _relative(quartiles(after)[index], quartiles(before)[index])
        if abs(change) > QUARTILES_MAY_MOVE:
            return f"the {name} quartile still moves by {change:+.0%}"
    spread_before, spread_after = map(median_absolute_deviation, (before, after))
    allowed = max(SPREAD_MAY_MOVE * spread_before, SPREAD_THAT_MATTERS * statistics.median(after))
    if abs(spread_after - spread_before) > allowed:
        return "the spread still moves"
    return ""


def _relative(after: float, before: float) -> float:
    return (after - before) / before if before else 0.0
