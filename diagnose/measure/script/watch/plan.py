"""How many steps does each pass get? Shares of the time that the user allows, in whole steps.

Counted in steps, not seconds, so that all ranks of a distributed job do the same at the same
step.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from diagnose.measure.script.change.changes import steps_per_window
from diagnose.records.script import Wanted
from diagnose.records.stats import FEWEST_FOR_ROBUST_INTERVAL

# Of the time for the verdict: so much of it may pass before the first step; what a script takes
# longer to get there (a data set is read) is not taken from the steps.
START_SHARE = 0.2
WARMUP_SHARE = 0.02
PLAIN_SHARE = 0.1
SAMPLED_SHARE = 0.15
TRIED_SHARE = 0.36
BATCH_SHARE = 0.1
DOUBLED_SHARE = 0.1
ENDING_SHARE = 0.05  # after the last step
MOST_STEPS_OF_A_PASS = 1000
MOST_BLOCKS = 30


@dataclass(frozen=True)
class Counts:
    """Steps of every pass."""

    plain: int
    sampled: int
    window: int

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def plan_counts(wanted: Wanted, step_seconds: float, ranks: int) -> Counts:
    possible = wanted.seconds / max(step_seconds, 1e-6)
    if wanted.steps is not None:
        possible = min(possible, wanted.steps)

    def share(part: float) -> int:
        return max(FEWEST_FOR_ROBUST_INTERVAL, min(MOST_STEPS_OF_A_PASS, int(possible * part)))

    return Counts(share(PLAIN_SHARE), share(SAMPLED_SHARE), steps_per_window(step_seconds, ranks))


def plan_blocks(wanted: Wanted, step_seconds: float, steps_per_block: int, share: float) -> int:
    possible = wanted.seconds * share / max(step_seconds, 1e-6)
    if wanted.steps is not None:
        possible = min(possible, wanted.steps * share)
    return max(
        FEWEST_FOR_ROBUST_INTERVAL, min(MOST_BLOCKS, int(possible / max(1, steps_per_block)))
    )


def fewest_steps(wanted: Wanted) -> int:
    """Below this nothing but a step time can be told: warm-up, plain, sampled and mapped steps."""
    return wanted.warmup + 2 * FEWEST_FOR_ROBUST_INTERVAL + 3
