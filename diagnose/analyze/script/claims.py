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
from diagnose.records.stats import FEWEST_FOR_INTERVAL, Interval, log_ratio_interval

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
    doubles: float = 0.0  # its gain is what doing this share of the work twice has added
    phase: Phase | None = None  # what comes now and then and was left out in some steps
    takes: str = ""  # the key of the suspect whose own claim this one includes
    always: bool = False  # reported whatever it costs now: it becomes worse


def gain_of(windows: Sequence[Window], change: Change, step_seconds: float) -> Interval | None:
    """Seconds per step that the change gives back; None with too few blocks for an interval.

    From ratios: what slows a whole block down cancels in them. They are those of a step without
    what comes only now and then, which `step_seconds` must leave out too.
    """
    blocks = _blocks(windows)
    pairs = [
        (_unchanged(sides, change.against), sides[change.variant] / change.samples)
        for sides in blocks
        if change.against in sides and change.variant in sides
    ]
    if len(pairs) < FEWEST_FOR_INTERVAL:
        return None
    before, after = [a for a, _ in pairs], [b for _, b in pairs]
    if change.doubles:
        return _added(after, before, step_seconds)
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
    pairs = [
        (sides[PLAIN], sides[AGAIN]) for sides in _blocks(windows) if {PLAIN, AGAIN} <= set(sides)
    ]
    if len(pairs) < FEWEST_FOR_INTERVAL:
        return 0.0
    control = log_ratio_interval([a for a, _ in pairs], [b for _, b in pairs])
    # Two of them are averaged where they are compared with a change.
    return math.expm1(max(map(abs, bounds(control)))) / 2


def _blocks(windows: Sequence[Window]) -> list[dict[str, float]]:
    blocks: dict[int, dict[str, float]] = {}
    for window in windows:
        blocks.setdefault(window.block, {})[window.variant] = window.seconds / window.steps
    return list(blocks.values())


def _unchanged(sides: Mapping[str, float], against: str) -> float:
    """Both unchanged windows of a block, where the change is compared with them."""
    if against == PLAIN and AGAIN in sides:
        return math.sqrt(sides[PLAIN] * sides[AGAIN])
    return sides[against]


def bounds(interval: Interval) -> tuple[float, float]:
    return interval.ends or (interval.center, interval.center)


def add(one: Interval, other: Interval) -> Interval:
    low, high = (a + b for a, b in zip(bounds(one), bounds(other), strict=True))
    return Interval(one.center + other.center, low, high)
