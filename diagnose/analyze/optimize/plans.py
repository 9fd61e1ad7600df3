"""What do changes bring as a bundle, and how long will it take?

A plan is predicted from its parts, as if they had nothing in common. All of them are measured
against the base in the same blocks: a part that was timed some minutes earlier met another
machine, and two equal settings can then differ by a third, with intervals that exclude each
other. What prediction and measurement differ by is what adding up gains cannot know.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from diagnose.analyze import derive
from diagnose.analyze.optimize.effects import (
    ALL_TOGETHER,
    PARTS,
    PASS,
    fact_of,
    is_bundle,
    is_whole,
    leaders,
    starts_elsewhere,
    widest,
)
from diagnose.analyze.optimize.experiment import Outcome, time_ratio
from diagnose.analyze.optimize.ladder import climb
from diagnose.analyze.units import scale
from diagnose.records.experiments import Comparison, OptimizeRecord
from diagnose.records.run import Measurement
from diagnose.records.stats import SMALLEST_MARGIN, Interval, hodges_lehmann

LIMIT = "max_new_tokens"
# The evaluation of the published guide; the example where the user names no number of samples.
EXAMPLE_BATCHES, EXAMPLE_BATCH = 6699, 32


@dataclass(frozen=True)
class Plan:
    """One bundle. Ratios are time before over time after: 2.0 takes half the time."""

    outcome: Outcome
    parts: tuple[str, ...]
    missing: tuple[str, ...]  # parts that were not timed in the plan's own blocks
    inert: tuple[str, ...]  # parts that are set but cannot act here
    predicted: Interval | None
    measured: Interval | None
    difference: Interval | None  # measured over predicted, less 1; block by block

    @property
    def interaction(self) -> str:
        acting = len(self.parts) - len(self.inert)
        if self.difference is None:
            return ""
        if acting < 2:
            return "fewer than two parts act here, so nothing can interact"
        return _describe_interaction(self.difference)


@dataclass(frozen=True)
class Total:
    """How long a whole evaluation takes in one of its forms."""

    name: str
    batch: int
    processes: int
    batches: int
    seconds_per_batch: Interval
    seconds: Interval
    # The base in the same blocks: on a shared machine only neighbours in time can be compared.
    base_seconds: Interval | None = None


def find_plans(outcomes: Sequence[Outcome]) -> list[Plan]:
    return [_plan(each, outcomes) for each in outcomes if PARTS in each.comparison.facts]


def best_plans(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """The fastest of those that are proven to keep the answers."""
    return leaders(
        each for each in outcomes if each.verdict == "FASTER" and PARTS in each.comparison.facts
    )


def combined(record: OptimizeRecord, outcomes: Sequence[Outcome]) -> list[Outcome]:
    """What is recommended together against nothing of it, each timed as a whole.

    The best plans; else the last step of the ladder; else all changes of a step or an epoch.
    """
    plans = [each for each in outcomes if PARTS in each.comparison.facts]
    if plans:
        timed = [each for each in plans if each.timed is not None]
        return best_plans(outcomes) or timed[:1] or plans[:1]
    whole = [
        each
        for each in outcomes
        if each.comparison.key.startswith(ALL_TOGETHER) and is_whole(each.comparison)
    ]
    return climb(record)[-1:] or whole


def is_limit(comparison: Comparison) -> bool:
    """Whether the change is a limit of tokens alone; a plan changes more at once."""
    return f"after_{LIMIT}" in comparison.facts and PARTS not in comparison.facts


def starts_from_base(comparison: Comparison) -> bool:
    """A gain over something else than the base is no gain of the job as it is."""
    is_pass = comparison.form == "after" and comparison.scope == PASS
    return is_pass and not starts_elsewhere(comparison)


def count_samples(record: OptimizeRecord) -> int:
    """Of the evaluation whose duration is asked for."""
    return record.samples or EXAMPLE_BATCHES * EXAMPLE_BATCH


def total_times(record: OptimizeRecord, outcomes: Sequence[Outcome]) -> list[Total]:
    """As it was, with the best single changes that keep the answers, and by every plan."""
    base = find_base(outcomes)
    if base is None or base.before is None:
        return []
    samples, own = count_samples(record), batch_of(record, base, "before")
    singles = [
        each
        for each in widest(outcomes)
        if each.verdict == "FASTER"
        and starts_from_base(each.comparison)
        and not is_bundle(each.comparison)
    ]
    forms = [(each.comparison.key, each.comparison) for each in leaders(singles)]
    forms += [
        (each.outcome.comparison.title, each.outcome.comparison)
        for each in find_plans(outcomes)
        if each.measured is not None
    ]
    totals = [_total("as it was", base.before, own, 1, samples)]
    for name, comparison in forms:
        processes = int(fact_of(comparison, "after_processes") or 1)
        batch = batch_of(record, comparison, "after")
        if comparison.before is not None and comparison.after is not None:
            same_blocks = eta_seconds(comparison.before, own, 1, samples)
            total = _total(name, comparison.after, batch, processes, samples, same_blocks)
            totals.append(total)
    return totals


def eta_seconds(side: Measurement, batch: int, processes: int, samples: int) -> Interval:
    """Batches of one process times the seconds of a batch."""
    count = math.ceil(samples / (batch * processes))
    return scale(batch_seconds(side, batch, processes), count)


def batch_seconds(side: Measurement, batch: int, processes: int) -> Interval:
    """While each process answers one batch, all of them together answer so many more samples."""
    share = batch * processes / (side.samples_per_step or batch * processes)
    return scale(derive.step_seconds(side), share)


def batch_of(record: OptimizeRecord, comparison: Comparison, name: str) -> int:
    """The size's own batch, unless the change is about it."""
    size = record.workload.settings.get("batch_size")
    found = fact_of(comparison, f"{name}_batch_size")
    return int(found or (size if isinstance(size, int) else 1))


def find_base(outcomes: Sequence[Outcome]) -> Comparison | None:
    """An experiment that timed the job as it was."""
    timed = (
        each.comparison
        for each in outcomes
        if starts_from_base(each.comparison) and time_ratio(each.comparison) is not None
    )
    return next(timed, None)


def _plan(outcome: Outcome, outcomes: Sequence[Outcome]) -> Plan:
    plan = outcome.comparison
    parts = _names(plan, PARTS)
    inert = tuple(key for key in parts if key in _names(plan, "inert"))
    timed = {
        each.comparison.key: each.comparison
        for each in outcomes
        if each.comparison.facts.get("within") == plan.key and _same_blocks(each.comparison, plan)
    }
    acting = [key for key in parts if key not in inert]
    missing = tuple(key for key in acting if key not in timed)
    ratios = [time_ratio(timed[key]) for key in acting if key in timed]
    known = [each for each in ratios if each is not None]
    complete = not missing and len(known) == len(acting)
    return Plan(
        outcome,
        parts,
        missing,
        inert,
        predicted=_multiply(known) if complete else None,
        measured=time_ratio(plan),
        difference=_difference(plan, [timed[key] for key in acting]) if complete else None,
    )


def _names(comparison: Comparison, fact: str) -> tuple[str, ...]:
    text = comparison.facts.get(fact)
    return tuple(str(text).split(", ")) if text else ()


def _same_blocks(part: Comparison, plan: Comparison) -> bool:
    """What was timed at another time, or on other questions, met other conditions."""
    return part.before is not None and part.before == plan.before and part.after is not None


def _multiply(factors: Sequence[Interval]) -> Interval:
    """The ends multiplied, as if all were at theirs at once: wider than need be, never narrower."""
    ends = [each.ends for each in factors if each.ends is not None]
    center = math.prod(each.center for each in factors)
    if len(ends) < len(factors):
        return Interval(center, None, None)
    return Interval(center, math.prod(low for low, _ in ends), math.prod(high for _, high in ends))


def _describe_interaction(difference: Interval) -> str:
    """Of what was measured, over what the single gains multiply to, less 1."""
    if difference.low is None or difference.high is None:
        return "whether they overlap is not decided"
    if difference.high < -SMALLEST_MARGIN:
        return "they overlap: the same time cannot be saved twice"
    if difference.low > SMALLEST_MARGIN:
        return "they help each other: one opens the way for the other"
    return "no interaction is visible within the intervals"


def _difference(plan: Comparison, parts: Sequence[Comparison]) -> Interval | None:
    """In each block the plan against all its parts, so that what they share cancels."""
    sides = [plan.before, plan.after, *(each.after for each in parts)]
    if not parts or any(each is None for each in sides):
        return None
    base, whole, *single = (derive.step_values(each.timing) for each in sides if each is not None)
    logs = [
        sum(map(math.log, block[2:])) - math.log(block[1]) - (len(parts) - 1) * math.log(block[0])
        for block in zip(base, whole, *single, strict=True)
    ]
    return hodges_lehmann(logs).map(lambda value: math.exp(value) - 1)


def _total(
    name: str,
    side: Measurement,
    batch: int,
    processes: int,
    samples: int,
    base_seconds: Interval | None = None,
) -> Total:
    return Total(
        name=name,
        batch=batch,
        processes=processes,
        batches=math.ceil(samples / (batch * processes)) * processes,
        seconds_per_batch=batch_seconds(side, batch, processes),
        seconds=eta_seconds(side, batch, processes, samples),
        base_seconds=base_seconds,
    )
