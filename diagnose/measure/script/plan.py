"""How many steps does each pass get? Shares of the time that the user allows, in whole steps.

Counted in steps, not seconds, so that all ranks of a distributed job do the same at the same
step. Only a script that runs alone may shorten a pass by its own clock.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass

from diagnose.measure.script.ranks import Ranks
from diagnose.records.script import Options
from diagnose.records.stats import FEWEST_FOR_INTERVAL, FEWEST_FOR_ROBUST_INTERVAL

# Of the time for the verdict: so much of it may pass before the first step; what a script takes
# longer to get there (a data set is read) is not taken from the steps.
START_SHARE = 0.2
WARMUP_SHARE = 0.02
PLAIN_SHARE = {"try": 0.1, "watch": 0.3}
SAMPLED_SHARE = {"try": 0.15, "watch": 0.2}
TRIED_SHARE = 0.36
BATCH_SHARE = 0.1
DOUBLED_SHARE = 0.1
ENDING_SHARE = 0.05  # after the last step
# Of the time, beyond what a pass was given: then its intervals need not be robust any more.
OVERTIME_SHARE = 0.05
MOST_STEPS_OF_A_PASS = 1000
MOST_BLOCKS = 30
# Long enough that one interruption by the system does not decide a window.
WINDOW_SECONDS = 0.15
SHORTEST_STEP_SECONDS = 1e-6


@dataclass(frozen=True)
class Counts:
    """Steps of every pass."""

    plain: int
    sampled: int
    window: int


class Timetable:
    """What the user allows, divided among the passes; rank 0 decides for all."""

    def __init__(self, options: Options, ranks: Ranks) -> None:
        self.options = options
        self.ranks = ranks
        self._began = time.perf_counter()
        self.counts = Counts(0, 0, 0)

    def start(self) -> None:
        self._began = time.perf_counter()

    def warm_up(self) -> Iterator[None]:
        """As often as there are steps to warm up."""
        first = time.perf_counter()
        self._began = max(self._began, first - self.options.seconds * START_SHARE)
        # Whoever counts steps, and ranks that must agree, count those of the warm-up too.
        counted = self.ranks.together or self.options.steps is not None
        least = 0.0 if counted else self.options.seconds * WARMUP_SHARE
        steps = 0
        while steps < self.options.warmup or time.perf_counter() - first < least:
            yield
            steps += 1

    def plan(self, step_seconds: float) -> None:
        """From here on it is known how long a step takes."""
        step_seconds = max(step_seconds, SHORTEST_STEP_SECONDS)
        window = max(2 if self.ranks.together else 1, math.ceil(WINDOW_SECONDS / step_seconds))

        def share(part: float) -> int:
            possible = int(self._possible_steps(step_seconds) * part)
            return max(FEWEST_FOR_ROBUST_INTERVAL, min(MOST_STEPS_OF_A_PASS, possible))

        mode = self.options.mode
        counts = Counts(share(PLAIN_SHARE[mode]), share(SAMPLED_SHARE[mode]), window)
        self.counts = Counts(**self.ranks.agree(asdict(counts)))

    def plan_blocks(self, step_seconds: float, steps_per_block: float, share: float) -> int:
        possible = self._possible_steps(max(step_seconds, SHORTEST_STEP_SECONDS)) * share
        blocks = min(MOST_BLOCKS, int(possible / max(1, round(steps_per_block))))
        return int(self.ranks.agree(max(FEWEST_FOR_ROBUST_INTERVAL, blocks)))

    def in_time(self, steps: int, share: float) -> Iterator[int]:
        """So many steps, or fewer where a machine that became busy makes them take too long."""
        first = time.perf_counter()
        for number in range(steps):
            late = time.perf_counter() - first > self.options.seconds * share
            if not self.ranks.together and late and number >= FEWEST_FOR_ROBUST_INTERVAL:
                return
            yield number

    def is_late(self, blocks: int, until: float) -> bool:
        """Whether this part of all the time has passed, and slow steps have made enough blocks."""
        spent = (time.perf_counter() - self._began) / self.options.seconds
        in_time = spent < until + OVERTIME_SHARE
        enough = FEWEST_FOR_ROBUST_INTERVAL if in_time else FEWEST_FOR_INTERVAL
        return bool(self.ranks.agree(spent > until and blocks >= enough))

    def _possible_steps(self, step_seconds: float) -> float:
        possible = self.options.seconds / step_seconds
        return possible if self.options.steps is None else min(possible, self.options.steps)


def fewest_steps(options: Options) -> int:
    """With fewer nothing but a step time is known: warm-up, plain, sampled and mapped steps."""
    return options.warmup + 2 * FEWEST_FOR_ROBUST_INTERVAL + 3
