"""What does each change bring alone, and on top of the ones before? The ladder.

Every figure of a step comes from one timer: both sides ran in the same blocks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from diagnose.analyze.optimize.effects import find
from diagnose.analyze.optimize.experiment import Outcome, judge_family
from diagnose.records.experiments import OptimizeRecord
from diagnose.records.stats import SMALLEST_MARGIN, Interval


@dataclass(frozen=True)
class LadderStep:
    """One change more on top of the ones before. Speed-ups are ratios: 2.0 is twice as fast."""

    added: str
    outcome: Outcome
    together: Interval  # of the base with all changes up to this one, against the base
    alone: Interval | None  # of this change by itself
    more: Interval  # of this step against the one before

    @property
    def is_proven(self) -> bool:
        return self.outcome.verdict in ("FASTER", "SLOWER")


@dataclass(frozen=True)
class Interaction:
    """The changes multiplied, as if they had nothing in common, against what they bring."""

    product: Interval
    together: Interval

    @property
    def verdict(self) -> str:
        return describe_interaction(over(self.together, self.product))


def describe_interaction(share: Interval) -> str:
    """Of what was measured, over what the single gains multiply to."""
    if share.low is None or share.high is None:
        return "whether they overlap is not decided"
    if share.high < 1 - SMALLEST_MARGIN:
        return "they overlap: the same time cannot be saved twice"
    if share.low > 1 + SMALLEST_MARGIN:
        return "they help each other: one opens the way for the other"
    return "no interaction is visible within the intervals"


def judge_ladder(record: OptimizeRecord) -> tuple[Outcome, ...]:
    """The steps are a family of their own: none of them tries a change that others also try."""
    return judge_family(record.rungs, record.header.machine)


def climb(record: OptimizeRecord, outcomes: Sequence[Outcome]) -> list[LadderStep]:
    """The steps that were timed, with the same change alone."""
    steps: list[LadderStep] = []
    before = Interval(1.0, 1.0, 1.0)
    for each in judge_ladder(record):
        if each.timed is None:
            continue
        together = each.timed.speedup
        single = find(outcomes, each.comparison.key, each.comparison.scope)
        alone = None if single is None or single.timed is None else single.timed.speedup
        more = over(together, before)
        steps.append(LadderStep(each.comparison.key, each, together, alone, more))
        before = together
    return steps


def interaction(steps: Sequence[LadderStep]) -> Interaction | None:
    """None where there is nothing to multiply, or a change has no speed-up of its own."""
    alone = [each.alone for each in steps if each.alone is not None]
    if len(steps) < 2 or len(alone) < len(steps):
        return None
    return Interaction(multiply(alone), steps[-1].together)


def multiply(factors: Sequence[Interval]) -> Interval:
    """The ends multiplied, as if all were at theirs at once: wider than need be, never narrower."""
    ends = [each.ends for each in factors if each.ends is not None]
    center = math.prod(each.center for each in factors)
    if len(ends) < len(factors):
        return Interval(center, None, None)
    return Interval(center, math.prod(low for low, _ in ends), math.prod(high for _, high in ends))


def over(above: Interval, below: Interval) -> Interval:
    """Both were measured against the base, but not in the same blocks: the ends add up."""
    center = above.center / below.center
    if above.low is None or above.high is None or not below.low or not below.high:
        return Interval(center, None, None)
    return Interval(center, above.low / below.high, above.high / below.low)
