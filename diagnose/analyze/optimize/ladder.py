"""What do the changes bring on top of each other? Every step in the same blocks as the base."""

from __future__ import annotations

from diagnose.analyze.optimize.experiment import Outcome, judge_family
from diagnose.records.experiments import OptimizeRecord


def judge_ladder(record: OptimizeRecord) -> tuple[Outcome, ...]:
    """The steps are a family of their own: none of them tries a change that others also try."""
    return judge_family(record.rungs, record.header.machine)


def climb(record: OptimizeRecord) -> list[Outcome]:
    """The steps that were timed. No two of them are compared: they ran minutes apart."""
    return [each for each in judge_ladder(record) if each.timed is not None]
