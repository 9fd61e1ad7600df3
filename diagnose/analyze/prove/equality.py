"""Do both sides compute the same, as far as chance and rounding let one tell?

What may differ is measured, not guessed: two runs of the side before (its own randomness), and one
whose weights were moved by one unit in the last place (how fast mere rounding grows).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace

from diagnose.analyze.units import number
from diagnose.records.prove import (
    AFTER,
    AGAIN,
    BEFORE,
    GRADIENT,
    LOSS,
    NUDGED,
    OUTPUT,
    PARAMETERS,
    Equality,
    EqualityVerdict,
    EqualRun,
    ProveRecord,
    find_batch_ratio,
)

# A sum in another order is wrong by some units in the last place, where a nudged weight is by one.
ROUNDING_FACTOR = 16.0
# In a type with few digits that much would hide a mistake: every weight was moved as far as such a
# type rounds it, and a value that is read is itself wrong by one unit at most.
COARSE_FACTOR, COARSE_UNITS = 4.0, 1.0
FINE_EPSILON = 2.0**-23  # of float32
# Where two runs of the same script differ by more than this share, nothing can be told.
OPAQUE = 0.1


def judge_equality(record: ProveRecord) -> Equality:
    runs = {each.name: each for each in record.runs}
    if {BEFORE, AFTER} <= runs.keys() and runs[BEFORE].is_same(runs[AFTER]):
        what = next(iter(runs[BEFORE].values))
        return Equality("EQUAL", None, what, None, None, None, runs[BEFORE].steps)
    if not {BEFORE, AFTER, AGAIN, NUDGED} <= runs.keys() or any(r.failed for r in record.runs):
        broken = next((each for each in record.runs if each.failed), None)
        why = f"in the run {broken.name}, {broken.failed}" if broken else "not every run took place"
        return _cannot_tell(record.missing or why)
    before, after = runs[BEFORE], runs[AFTER]
    ratio = find_batch_ratio(record.runs)
    if ratio != 1.0:
        return _cannot_tell(_at_equal_samples(before, after), before.steps)
    names = [name for name in (LOSS, GRADIENT, PARAMETERS, OUTPUT) if name in before.values]
    if before.shapes != after.shapes:
        names = [each for each in names if each != PARAMETERS]
    if not names or before.values.keys() != after.values.keys():
        return _cannot_tell("the sides have no value in common: no loss, gradient or output")
    checks = [_Check(name, runs) for name in names]
    verdict = _compare(checks, min(before.steps, after.steps))
    if verdict.step is None and before.steps != after.steps:
        fewer = BEFORE if before.steps < after.steps else AFTER
        step = min(before.steps, after.steps)
        reason = f"the side {fewer} ends after {step} steps, the other goes on"
        return replace(verdict, verdict="DIVERGES", step=step + 1, what="steps", reason=reason)
    if before.precision != after.precision:
        told = f"the model computes in {after.precision} instead of {before.precision}"
        return replace(verdict, reason="; ".join(filter(None, (told, verdict.reason))))
    return verdict


def _cannot_tell(reason: str, steps: int = 0) -> Equality:
    return Equality("CANNOT TELL", None, "", None, None, None, steps, reason)


def _at_equal_samples(before: EqualRun, after: EqualRun) -> str:
    """Steps of different sizes follow different paths; their losses are only told."""
    texts = [f"a step has {before.samples:g} samples before and {after.samples:g} after"]
    losses = [each.values.get(LOSS, ()) for each in (before, after)]
    sizes = [before.samples, after.samples]
    shared = min(size * len(each) for size, each in zip(sizes, losses, strict=True))
    means = [
        statistics.fmean(filter(None, values[: int(shared // size)]))
        for size, values in zip(sizes, losses, strict=True)
        if any(values[: int(shared // size)])
    ]
    if len(means) == 2:
        texts.append(
            f"over the first {shared:g} samples the mean loss is {number(means[0], 6)} before and "
            f"{number(means[1], 6)} after"
        )
    return "; ".join(texts)


class _Check:
    """One quantity in all runs, step by step."""

    def __init__(self, name: str, runs: Mapping[str, EqualRun]) -> None:
        self.name = name
        self.before, self.after, self.again, self.nudged = (
            runs[each].values.get(name, ()) for each in (BEFORE, AFTER, AGAIN, NUDGED)
        )
        self._epsilon = max(runs[each].epsilon for each in (BEFORE, AFTER))
        self._scale = self._size = 0.0

    def has(self, step: int) -> bool:
        return step < min(map(len, (self.before, self.after, self.again, self.nudged)))

    def judge(self, step: int) -> tuple[float, float] | None:
        """How far the sides are apart and may be; None where the scale says nothing any more."""
        values = [each[step] for each in (self.before, self.after, self.again, self.nudged)]
        before, after, again, nudged = (math.inf if each is None else each for each in values)
        if math.isinf(before) or math.isinf(again) or math.isinf(nudged):
            return None if not math.isinf(after) or before != again else (0.0, 0.0)
        self._size = max(self._size, abs(before))
        self._scale = max(self._scale, abs(before - again), abs(before - nudged))
        if self._scale > OPAQUE * self._size:
            return None
        unit = self._epsilon * self._size
        if self._epsilon > FINE_EPSILON:
            return abs(before - after), max(COARSE_FACTOR * self._scale, COARSE_UNITS * unit)
        return abs(before - after), ROUNDING_FACTOR * max(self._scale, unit)


def _compare(checks: Sequence[_Check], steps: int) -> Equality:
    exact, compared = True, 0
    open_checks = list(checks)
    for step in range(steps):
        for check in list(open_checks):
            found = check.judge(step) if check.has(step) else None
            if found is None:
                open_checks.remove(check)
                continue
            apart, allowed = found
            exact &= apart == 0.0
            if apart > allowed:
                values = check.before[step], check.after[step]
                return Equality("DIVERGES", step + 1, check.name, *values, allowed, step + 1)
        if not open_checks:
            break
        compared = step + 1
    if not compared:
        return _cannot_tell("two runs of the side before differ from the first step on")
    reason = ""
    if compared < steps:
        reason = f"from step {compared + 1} on, two runs of the side before differ as much"
    verdict: EqualityVerdict = "EQUAL" if exact else "EQUAL WITHIN ROUNDING"
    return Equality(verdict, None, checks[0].name, None, None, None, compared, reason)
