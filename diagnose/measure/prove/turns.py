"""How many steps has a turn of each side: untimed ones, and those of its window?"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from diagnose.measure.prove.racer import WARMUP_STEPS, Ended, Failed, Racer
from diagnose.records.prove import AFTER, BEFORE

# Long enough that an interruption by the system does not decide a window.
WINDOW_SECONDS = 0.25
WARMUP_SECONDS = 1.5
FEWEST_WARMUP_STEPS = 5
MOST_WARMUP_STEPS = 60
# Of a window: steps at its head that are not timed, while caches are the other side's.
SETTLE_SHARE = 0.1
# A step that takes so many times as long as usual has something that the others have not.
RARE_STEP = 1.5


@dataclass(frozen=True)
class Turn:
    """Of one side, whenever it is its turn."""

    settle: int
    steps: int

    def scaled(self, share: float) -> Turn:
        return Turn(max(1, int(self.settle * share)), max(1, int(self.steps * share)))


def plan_turns(racers: Mapping[str, Racer], ratio: float) -> dict[str, Turn]:
    """By a warm-up of both; `ratio` is the samples of a step before by those of a step after."""
    usual, ahead, cadence = 0.0, 0, 1
    for racer in racers.values():
        each: list[float] = []
        # What ends soon is started for every window, and is no warmer for more steps.
        while len(each) < FEWEST_WARMUP_STEPS or (
            sum(each) < WARMUP_SECONDS and len(each) < MOST_WARMUP_STEPS < racer.length
        ):
            window = _warm(racer, min(MOST_WARMUP_STEPS, max(5, len(each))))
            each += window["each"]
            ahead = max(ahead, window["prefetched"])
        usual = max(usual, statistics.median(each))
        cadence = math.lcm(cadence, find_cadence(each))
    steps = max(math.ceil(WINDOW_SECONDS / usual), ahead + 1)
    steps = cadence * math.ceil(steps / cadence)
    settle = max(1, round(SETTLE_SHARE * steps))
    times = {BEFORE: max(1, round(1 / ratio)), AFTER: max(1, round(ratio))}
    return fit_turns(
        racers, {name: Turn(settle * each, steps * each) for name, each in times.items()}
    )


def fit_turns(racers: Mapping[str, Racer], turns: Mapping[str, Turn]) -> dict[str, Turn]:
    """Windows that fit between the warm-up and the end of a run."""
    usable = min(each.length for each in racers.values()) - WARMUP_STEPS
    if usable < 2:
        raise Failed("a run of the script has too few steps to be timed")
    share = min(1.0, usable / max(each.settle + each.steps for each in turns.values()))
    return {name: each.scaled(share) for name, each in turns.items()}


def find_cadence(each: Sequence[float]) -> int:
    """Every so many steps there is one that takes longer; 1 where they are all alike."""
    usual = statistics.median(each)
    rare = [place for place, seconds in enumerate(each) if seconds > RARE_STEP * usual]
    gaps = {later - earlier for earlier, later in pairwise(rare)}
    return gaps.pop() if len(gaps) == 1 and len(rare) > 2 else 1


def _warm(racer: Racer, steps: int) -> dict[str, Any]:
    for _ in range(2):
        try:
            return racer.run_steps(0, steps)
        except Ended:
            racer.start(racer.copy.name)
    for fewer in (3, 1):
        try:
            return racer.run_steps(0, fewer)
        except Ended:
            racer.start(racer.copy.name)
    raise Failed(f"{racer.copy.title} has too few steps to be timed")
