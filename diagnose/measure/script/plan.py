"""How many steps does each pass get? Rounds that grow, until the time that the user allows is over.

A round visits everything once: plain steps, sampled steps, and windows of every change. The first
rounds are short, so that a script that ends early has been asked everything, and later ones narrow
what the first left wide. Counted in steps, not seconds, so that all ranks of a distributed job do
the same at the same step. Only a script that runs alone may shorten a pass by its own clock.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Literal

from diagnose.measure.script.ranks import Ranks
from diagnose.records.script import Options
from diagnose.records.stats import FEWEST_FOR_INTERVAL, FEWEST_FOR_ROBUST_INTERVAL

# Of the time for the verdict: so much of it may pass before the first step; what a script takes
# longer to get there (a data set is read) is not taken from the steps.
START_SHARE = 0.2
WARMUP_SHARE, LONGEST_WARMUP_SHARE = 0.02, 0.1
FEWEST_WARMUP, MOST_WARMUP = 2, 20
WATCH_SHARE = {"plain": 0.3, "sampled": 0.2}  # of all the time that a job is watched
LOOK_SHARE = 0.04  # plain steps of one round, and sampled ones
ENDING_SHARE = 0.05  # after the last step
FEWEST_PLAIN, FEWEST_SAMPLED, MAPPED = 6, 8, 4
FEWEST_OF_SLOW = 2
MOST_STEPS_OF_A_PASS = 1000
# Long enough that one interruption by the system does not decide a window; the first ones are
# short, for scripts that end early.
WINDOW_SECONDS, FIRST_WINDOW_SECONDS = 0.15, 0.02
SHORTEST_STEP_SECONDS = 1e-6


@dataclass(frozen=True)
class Round:
    """Steps of every pass of one round."""

    number: int
    plain: int
    sampled: int
    window: int


class Timetable:
    """What the user allows, divided among the passes; rank 0 decides for all."""

    def __init__(self, options: Options, ranks: Ranks) -> None:
        self.options = options
        self.ranks = ranks
        self._began = time.perf_counter()
        self._step_seconds = SHORTEST_STEP_SECONDS
        self._steps = 0

    def start(self) -> None:
        self._began = time.perf_counter()

    def warm_up(self) -> Iterator[None]:
        """As often as there are steps to warm up."""
        first, allowed = time.perf_counter(), self.options.seconds
        self._began = max(self._began, first - allowed * START_SHARE)
        # Whoever counts steps, and ranks that must agree, count those of the warm-up too.
        counted = self.ranks.together or self.options.steps is not None
        steps, wanted = 0, self.options.warmup
        self._steps = 0  # those before were of another kind
        while True:
            passed = 0.0 if counted else (time.perf_counter() - first) / allowed
            warm = passed >= WARMUP_SHARE or counted or steps >= max(MOST_WARMUP, wanted)
            slow = steps >= FEWEST_WARMUP and passed >= LONGEST_WARMUP_SHARE
            if (steps >= wanted and warm) or slow:
                return
            yield
            steps += 1

    def plan(self, step_seconds: float) -> None:
        """From here on it is known how long a step takes."""
        self._step_seconds = float(self.ranks.agree(max(step_seconds, SHORTEST_STEP_SECONDS)))

    def watched(self) -> tuple[int, int]:
        """Plain and sampled steps of a job that nothing is tried in."""
        possible = self._possible_steps()

        def share(part: float) -> int:
            most = min(MOST_STEPS_OF_A_PASS, int(possible * part))
            return max(FEWEST_FOR_ROBUST_INTERVAL, most)

        counts = [share(WATCH_SHARE["plain"]), share(WATCH_SHARE["sampled"])]
        plain, sampled = self.ranks.agree(counts)
        return int(plain), int(sampled)

    def rounds(self) -> Iterator[Round]:
        """One after the other until the time is over."""
        number = 0
        while not number or not self.is_late():
            agreed = Round(**self.ranks.agree(asdict(self._round(number))))
            yield agreed
            number += 1

    def _round(self, number: int) -> Round:
        step, growth = self._step_seconds, 2 ** min(number, 20)
        most = self._possible_steps() * LOOK_SHARE
        # Of slow steps a few must do; sampling one of them sees as much as many fast ones.
        slow = step > self.options.seconds * LOOK_SHARE / 2
        plain, sampled = (
            FEWEST_OF_SLOW if slow else min(fewest * growth, max(fewest, int(most)))
            for fewest in (FEWEST_PLAIN, FEWEST_SAMPLED)
        )
        shortest = 2 if self.ranks.together else 1
        first = math.ceil(FIRST_WINDOW_SECONDS / step)
        longest = math.ceil(WINDOW_SECONDS / step)
        return Round(number, plain, sampled, max(shortest, min(longest, first * growth)))

    def fitting_sides(self, steps_per_side: float) -> int:
        """How many kinds of windows fit into the time that is left, with enough of each kind."""
        left = max(0.0, self._left() * (1 - ENDING_SHARE))
        if self.options.steps is not None:
            left = min(left, max(0, self.options.steps - self._steps) * self._step_seconds)
        block = self._step_seconds * max(1.0, steps_per_side)
        return int(self.ranks.agree(int(left / (FEWEST_FOR_INTERVAL * block))))

    def in_time(self, steps: int, kind: Literal["plain", "sampled"]) -> Iterator[int]:
        """So many steps, or fewer where a machine that became busy makes them take too long."""
        first = time.perf_counter()
        share = WATCH_SHARE[kind] if self.options.mode == "watch" else 2 * LOOK_SHARE
        for number in range(steps):
            late = time.perf_counter() - first > self.options.seconds * share
            if not self.ranks.together and late and number >= FEWEST_FOR_ROBUST_INTERVAL:
                return
            yield number

    def count_step(self) -> None:
        self._steps += 1

    @property
    def is_over(self) -> bool:
        """Whether a script that runs alone must be told its verdict now."""
        if self.ranks.together:
            return False
        counted = self.options.steps is not None and self._steps >= self.options.steps
        return counted or self._left() <= ENDING_SHARE * self.options.seconds

    def is_late(self, until: float = 1 - ENDING_SHARE) -> bool:
        """Whether this part of all the time has passed; all ranks hear the same."""
        counted = self.options.steps is not None and self._steps >= self.options.steps * until
        return bool(self.ranks.agree(counted or self._spent() > until))

    @property
    def seconds_left(self) -> float:
        return max(0.0, self._left())

    def _spent(self) -> float:
        return (time.perf_counter() - self._began) / self.options.seconds

    def _left(self) -> float:
        return self.options.seconds * (1 - self._spent())

    def _possible_steps(self) -> float:
        possible = self.options.seconds / self._step_seconds
        return possible if self.options.steps is None else min(possible, self.options.steps)
