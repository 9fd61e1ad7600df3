"""Do the data arrive in time, and is what arrives worth computing?"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from diagnose.analyze import derive
from diagnose.analyze.findings import Finding
from diagnose.analyze.units import milliseconds, number, percent
from diagnose.analyze.verdicts import MATTERS, cannot_tell, cost_text, excluded, judge_cost, within
from diagnose.records.run import Measurement, RunRecord
from diagnose.records.stats import CONFIDENCE, Interval, fewest_for_family

# At a third of padding, sorting by length buys more than most kernel work.
MUCH_PADDING = 0.30


def input_bound(record: RunRecord) -> list[Finding]:
    cost = derive.stage_difference(record, "real_data")
    if cost is None:
        return []
    evidence = f"loading minus the same step on resident batches: {cost_text(cost)}"
    loader = fastest(derive.results(record, "loader"))
    if loader is not None:
        seconds = derive.step_seconds(loader)
        evidence += f"; the loader alone needs {milliseconds(seconds)} ms per batch at best"
    advice = (
        "Use more loader workers or another storage: the loader table shows what each is worth "
        "here. Preprocessing the data once, pinned memory and copies that do not block are worth "
        "a try; this run did not compare them."
    )
    found = judge_cost("input_bound", "The input pipeline", cost, evidence, advice)
    bound = _loading_bound(record)
    if found.verdict == "cannot tell" and bound is not None and bound <= MATTERS:
        evidence += (
            f", at most {percent(bound)} of the step, and it ran in the training process "
            "itself, where it can disturb nothing else"
        )
        return [excluded("input_bound", "The input pipeline", evidence)]
    return [found]


def _loading_bound(record: RunRecord) -> float | None:
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


def loader_workers(record: RunRecord) -> list[Finding]:
    return _loader_factor(record, "loader_workers", "workers", "The number of loader workers")


def storage(record: RunRecord) -> list[Finding]:
    return _loader_factor(record, "storage", "storage", "The way the data are stored")


def padding(record: RunRecord) -> list[Finding]:
    data = record.workload.data
    if data is None:
        if "real_data" not in record.planned:
            return []
        reason = record.workload.data_reason or "the data were not described"
        return [cannot_tell("padding", "padding", reason)]
    evidence = f"{percent(data.padding_share)} of all token slots of the data are padding"
    if data.padding_share <= MUCH_PADDING:
        return [excluded("padding", "Padding", evidence)]
    return [
        Finding(
            "padding",
            "cause",
            "warning",
            f"Padding costs at most {percent(data.padding_share)} of the step.",
            evidence,
            "Bucket the sentences by length, or pad to the longest of each batch.",
        )
    ]


def fastest(measurements: Sequence[Measurement]) -> Measurement | None:
    return min(measurements, key=lambda each: derive.step_seconds(each).center, default=None)


def _loader_factor(record: RunRecord, kind: str, setting: str, name: str) -> list[Finding]:
    """Does this one setting of the loader change a batch by more than matters to a step?"""
    pairs = _pairs(derive.results(record, "loader"), setting)
    if not pairs:
        return []
    slow, fast = max(pairs, key=lambda pair: derive.difference(*pair).seconds.center)
    step = derive.headline(record)
    unit = "a step" if step else "a batch"
    base = derive.step_seconds(step[1] if step else slow).center
    values = (derive.describe_settings(each, [setting]) for each in (slow, fast))
    evidence = "{}: {} ms per batch; {}: {} ms; ".format(
        *(
            text
            for value, each in zip(values, (slow, fast), strict=True)
            for text in (value, milliseconds(derive.step_seconds(each)))
        )
    )
    bound = MATTERS * base
    # "None of them differs" needs every pair to pass on its own, so nothing is gained by chance
    # and no interval has to be widened.
    if all(within(derive.difference(*pair).seconds, bound) for pair in pairs):
        evidence += _gap_text(derive.difference(slow, fast).seconds, base, unit)
        if len(pairs) > 1:
            evidence += f"; the interval of each of {len(pairs)} pairs is within "
            evidence += f"{percent(MATTERS)} of {unit}"
        return [excluded(kind, name, evidence)]
    # "This one differs" was asked of the pair with the largest gap: only an interval that holds
    # for all pairs at once may be read for it (Bonferroni).
    confidence = 1 - (1 - CONFIDENCE) / len(pairs)
    gap = derive.difference(slow, fast, confidence)
    evidence += _gap_text(gap.seconds, base, unit) + _adjustment(gap, confidence, len(pairs))
    if gap.seconds.low is None or gap.seconds.low <= 0 or gap.seconds.center <= bound:
        return [cannot_tell(kind, name[0].lower() + name[1:], evidence)]
    used = derive.result(record, "real_data")
    in_use = used is not None and used.settings.get(setting) == slow.settings.get(setting)
    best = derive.describe_settings(fast, [setting])
    return [
        Finding(
            kind,
            "cause" if in_use else "flag",
            "warning" if in_use else "info",
            f"{name} matters on this machine.",
            evidence,
            f"Use {best}, the faster one here.",
        )
    ]


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
