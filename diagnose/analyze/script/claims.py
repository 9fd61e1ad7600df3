"""What is a claim, before it is decided whether it is a finding? A cause and what it would give."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from diagnose.records.script import (
    AGAIN,
    PLAIN,
    Cause,
    Change,
    Occasion,
    Phase,
    ScriptRecord,
    Site,
    Suspect,
    Window,
)
from diagnose.records.stats import (
    FEWEST_FOR_INTERVAL,
    FEWEST_FOR_ROBUST_INTERVAL,
    Interval,
    log_ratio_interval,
)

# The same margin as in every other report of this suite: what is below is no cause.
SMALLEST_SHARE = 0.05
# Phases that the windows of a trial leave out.
NOW_AND_THEN: tuple[Phase, ...] = ("evaluation", "checkpoint", "logging")
# A log line in every step gives thousands of pairs; more than these change nothing.
MOST_PAIRS = 100


@dataclass(frozen=True)
class Claim:
    """One cause with its gain, before it is decided whether that is enough."""

    cause: Cause
    site: Site | None
    gain: Interval
    verified: bool
    evidence: str
    smallest_share: float = SMALLEST_SHARE
    suspect: Suspect | None = None
    phase: Phase | None = None  # what comes now and then and was left out in some steps
    takes: str = ""  # the key of the suspect whose own claim this one includes
    advice: str = ""  # what to do, where the cause alone does not say it
    always: bool = False  # reported whatever it costs now: it becomes worse


def gain_of(windows: Sequence[Window], change: Change, step_seconds: float) -> Interval | None:
    """Seconds per step that the change gives back; None with too few blocks for an interval.

    From ratios: what slows a whole block down cancels in them. They are those of a step without
    what comes only now and then, which `step_seconds` must leave out too.
    How many blocks there are hangs on the clock alone, never on what they show: nobody looks, so
    this interval holds and is narrower than one that would hold at every look.
    """
    sides = _longest([e for e in _blocks(windows) if {change.against, change.variant} <= set(e)])
    if len(sides) < FEWEST_FOR_INTERVAL:
        return None
    before = [_unchanged(each, change.against) for each in sides]
    after = [each[change.variant].per_step / change.samples for each in sides]
    ratio = log_ratio_interval(before, after)
    if change.against != PLAIN:  # replayed batches: what they leave of a step is the whole here
        step_seconds = min(step_seconds, statistics.median(before))
    return ratio.map(lambda each: step_seconds * -math.expm1(-each))


def cost_of(occasion: Occasion, step_seconds: float) -> Interval | None:
    """Seconds that one such occasion adds to its step; None with too few for an interval.

    From ratios of neighbours, like everything else; `step_seconds` must leave out what comes
    only now and then.
    """
    count = min(len(occasion.ran), len(occasion.left_out), MOST_PAIRS)
    if count < FEWEST_FOR_INTERVAL:
        return None
    return _added(occasion.ran[-count:], occasion.left_out[-count:], step_seconds)


def _added(more: Sequence[float], less: Sequence[float], step_seconds: float) -> Interval:
    """What the first sides take more than the second, on top of a step of so many seconds."""
    ratio = log_ratio_interval(more, less)
    return ratio.map(lambda each: step_seconds * math.expm1(each))


def usual_seconds(record: ScriptRecord) -> float:
    """Of a step without what comes only now and then, which windows leave out too."""
    mean = statistics.fmean(record.step_seconds) if record.step_seconds else 0.0
    return mean - sum(record.phases.get(phase, 0.0) for phase in NOW_AND_THEN)


def noise_share(windows: Sequence[Window]) -> float:
    """By how much unchanged steps differ from unchanged steps here, as a share."""
    sides = _longest([each for each in _blocks(windows) if {PLAIN, AGAIN} <= set(each)])
    if len(sides) < FEWEST_FOR_INTERVAL:
        return 0.0
    one, other = ([each[name].per_step for each in sides] for name in (PLAIN, AGAIN))
    control = log_ratio_interval(one, other)
    # Two of them are averaged where they are compared with a change.
    return math.expm1(max(map(abs, bounds(control)))) / 2


Sides = Mapping[str, Window]


def _blocks(windows: Sequence[Window]) -> list[Sides]:
    blocks: dict[int, dict[str, Window]] = {}
    for window in windows:
        blocks.setdefault(window.block, {})[window.variant] = window
    return list(blocks.values())


def _longest(blocks: list[Sides]) -> list[Sides]:
    """Windows of the first rounds are short, and not needed once there are enough long ones."""
    by_length = sorted(blocks, key=_steps_of, reverse=True)
    longest = [each for each in by_length if _steps_of(each) == _steps_of(by_length[0])]
    return longest if len(longest) >= FEWEST_FOR_ROBUST_INTERVAL else blocks


def _steps_of(block: Sides) -> int:
    return max(each.steps for each in block.values())


def _unchanged(sides: Sides, against: str) -> float:
    """Both unchanged windows of a block, where the change is compared with them."""
    if against == PLAIN and AGAIN in sides:
        return math.sqrt(sides[PLAIN].per_step * sides[AGAIN].per_step)
    return sides[against].per_step


def bounds(interval: Interval) -> tuple[float, float]:
    return interval.ends or (interval.center, interval.center)


def add(one: Interval, other: Interval) -> Interval:
    low, high = (a + b for a, b in zip(bounds(one), bounds(other), strict=True))
    return Interval(one.center + other.center, low, high)
