"""Does a setting of the loader change a batch by more than matters to a step?"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from diagnose.analyze import derive
from diagnose.analyze.units import milliseconds, number, percent
from diagnose.analyze.verdicts import MATTERS, within
from diagnose.records.run import Measurement, RunRecord
from diagnose.records.stats import CONFIDENCE, Interval, fewest_for_family


@dataclass(frozen=True)
class Gap:
    """What one setting is worth between the slowest and the fastest that differ in it alone."""

    matters: bool | None  # None: cannot be told
    evidence: str
    best: str
    in_use: bool  # the real-data stage ran with the slow one


def compare_loaders(record: RunRecord, setting: str) -> Gap | None:
    pairs = _pairs(derive.results(record, "loader"), setting)
    if not pairs:
        return None
    slow, fast = max(pairs, key=lambda pair: derive.difference(*pair).seconds.center)
    step = derive.headline(record)
    unit = "a step" if step else "a batch"
    base = derive.step_seconds(step[1] if step else slow).center
    worst, best = (derive.describe_settings(each, [setting]) for each in (slow, fast))
    evidence = (
        f"{worst}: {milliseconds(derive.step_seconds(slow))} ms per batch; "
        f"{best}: {milliseconds(derive.step_seconds(fast))} ms; "
    )
    used = derive.result(record, "real_data")
    in_use = used is not None and used.settings.get(setting) == slow.settings.get(setting)
    bound = MATTERS * base
    # "None of them differs" needs every pair to pass on its own, so nothing is gained by chance
    # and no interval has to be widened.
    if all(within(derive.difference(*pair).seconds, bound) for pair in pairs):
        evidence += _gap_text(derive.difference(slow, fast).seconds, base, unit)
        if len(pairs) > 1:
            evidence += f"; the interval of each of {len(pairs)} pairs is within "
            evidence += f"{percent(MATTERS)} of {unit}"
        return Gap(False, evidence, best, in_use)
    # "This one differs" was asked of the pair with the largest gap: only an interval that holds
    # for all pairs at once may be read for it (Bonferroni).
    confidence = 1 - (1 - CONFIDENCE) / len(pairs)
    gap = derive.difference(slow, fast, confidence)
    evidence += _gap_text(gap.seconds, base, unit) + _adjustment(gap, confidence, len(pairs))
    low = gap.seconds.low
    proven = low is not None and low > 0 and gap.seconds.center > bound
    return Gap(True if proven else None, evidence, best, in_use)


def _gap_text(gap: Interval, base: float, unit: str) -> str:
    return f"difference {milliseconds(gap)} ms, {percent(gap.center / base)} of {unit}"


def _adjustment(gap: derive.Difference, confidence: float, compared: int) -> str:
    if compared == 1:
        return ""
    chosen = f"; the largest of {compared} pairs"
    if gap.seconds.low is None:
        needed = fewest_for_family(compared)
        return f"{chosen} can be proven from {needed} blocks on, this run has {gap.blocks}"
    return f"{chosen}, so its interval is one of {number(100 * confidence, 3)} %"


def _pairs(
    measurements: Sequence[Measurement], setting: str
) -> list[tuple[Measurement, Measurement]]:
    """Slower and faster of every two that differ in this setting alone."""
    others = derive.varying_settings(measurements, but=setting)
    pairs = []
    for first, second in itertools.combinations(measurements, 2):
        same = all(first.settings.get(each) == second.settings.get(each) for each in others)
        if same and first.settings.get(setting) != second.settings.get(setting):
            slower = derive.difference(first, second).seconds.center > 0
            pairs.append((first, second) if slower else (second, first))
    return pairs


def loading_bound(record: RunRecord) -> float | None:
    """What loading can cost at most, as a share of the step, where that is known.

    Without workers and without a copy to a device, a step pays exactly the time that loading
    takes alone. Workers share processors and memory with the step, so for them it is no bound.
    """
    used = derive.result(record, "real_data")
    if used is None or used.settings.get("workers") != 0 or record.header.machine.device != "cpu":
        return None
    names = ("workers", "storage")
    for alone in derive.results(record, "loader"):
        if all(alone.settings.get(name) == used.settings.get(name) for name in names):
            longest, shortest = derive.step_seconds(alone).high, derive.step_seconds(used).low
            return longest / shortest if longest is not None and shortest else None
    return None
