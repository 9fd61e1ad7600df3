"""Is the change faster, and does it pass a gate?"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from diagnose.analyze.prove.equality import judge_equality
from diagnose.analyze.units import number
from diagnose.records.prove import (
    AFTER,
    BEFORE,
    STARTS,
    EqualRun,
    ProveRecord,
    Speed,
    blocks_of,
    find_batch_ratio,
    speed_interval,
    starts_of,
)
from diagnose.records.sequential import CONFIDENCE, SpeedVerdict, decide, passes_gate
from diagnose.records.stats import Interval


def judge_speed(record: ProveRecord) -> Speed:
    ratio = find_batch_ratio(record.runs)
    blocks = blocks_of(record.windows, ratio)
    per = "step" if ratio == 1.0 else "sample"
    if not blocks:
        why = record.missing or "nothing was timed"
        return Speed("INCONCLUSIVE", None, None, CONFIDENCE, per, None, None, 0, None, why)
    interval = speed_interval(record.windows, ratio)
    verdict: SpeedVerdict = decide(interval) if _is_confirmed(record) else "INCONCLUSIVE"
    before, after = (
        statistics.median(each.seconds / each.steps for each in record.windows if each.side == side)
        for side in (BEFORE, AFTER)
    )
    after *= ratio
    samples = _samples(record.runs, ratio)
    reason = record.missing
    if verdict == "INCONCLUSIVE" and not reason:
        reason = _why_undecided(record, interval, ratio)
    return Speed(
        verdict=verdict,
        ratio=interval.center,
        ratio_ci=interval.ends,
        confidence=CONFIDENCE,
        per=per,
        before_ms=1e3 * before,
        after_ms=1e3 * after,
        blocks=len(blocks),
        control=statistics.median(block.before / block.again for block in blocks),
        reason=reason,
        samples_per_second=(samples / before, samples / after) if samples else None,
    )


def _samples(runs: Sequence[EqualRun], ratio: float) -> float:
    """Of a step before; where both sides take the same data, no call of the model counts twice."""
    counts = {each.name: each.samples for each in runs}
    before, after = counts.get(BEFORE, 0.0), counts.get(AFTER, 0.0)
    return min(before, after) if ratio == 1.0 else before


def _is_confirmed(record: ProveRecord) -> bool:
    return len(starts_of(record.windows)) >= STARTS


def _why_undecided(record: ProveRecord, interval: Interval, ratio: float) -> str:
    starts = [speed_interval(each, ratio) for each in starts_of(record.windows)]
    if decide(starts[0]) != "INCONCLUSIVE":
        if len(starts) < STARTS:
            return "a second start of both sides has not confirmed it"
        if starts[1].ends is not None:
            ratios = " and ".join(number(each.center, 4) for each in starts)
            return f"two starts of the same scripts gave different ratios, {ratios}"
    if interval.ends is None:
        return "so few blocks give no interval; allow more --seconds"
    return "the interval is too wide to tell; allow more --seconds or a quieter machine"


def gate(record: ProveRecord, slower: float | None, *, diverges: bool) -> bool | None:
    """Whether the change passes what was asked of it; None where that is not proven."""
    found: list[bool | None] = []
    if slower is not None:
        speed = judge_speed(record)
        interval = Interval(speed.ratio or 1.0, *(speed.ratio_ci or (None, None)))
        found.append(passes_gate(interval, slower) if _is_confirmed(record) else None)
    if diverges:
        verdict = judge_equality(record).verdict
        found.append(None if verdict == "CANNOT TELL" else verdict != "DIVERGES")
    return False if False in found else None if None in found else True
