"""Which DDP option gives scaling back? The options judged like every other experiment."""

from __future__ import annotations

from collections.abc import Iterable

from diagnose.analyze.optimize.effects import is_proven_equal, leaders
from diagnose.analyze.optimize.experiment import Outcome, judge_all
from diagnose.records.experiments import OptimizeRecord
from diagnose.records.header import Setting
from diagnose.records.ranks import ScalingRecord


def as_experiments(record: ScalingRecord) -> OptimizeRecord:
    """The options as a record of experiments, so that one engine judges both."""
    return OptimizeRecord(
        header=record.header,
        workload=record.workload,
        planned=tuple(dict.fromkeys(each.key for each in record.comparisons)),
        comparisons=record.comparisons,
        complete=record.complete,
    )


def judge_options(record: ScalingRecord) -> tuple[Outcome, ...]:
    return judge_all(as_experiments(record))


def count_all_reduces(outcome: Outcome) -> tuple[int, int] | None:
    """Per optimizer step, before and after; None where they were not counted."""
    facts = outcome.comparison.facts
    before, after = facts.get("all_reduces_before"), facts.get("all_reduces_after")
    if not _is_count(before) or not _is_count(after):
        return None
    return int(before or 0), int(after or 0)


def best_options(outcomes: Iterable[Outcome]) -> list[Outcome]:
    """The fastest of those that are proven faster and equal."""
    tried = (each for each in outcomes if each.comparison.form == "after")
    return leaders(each for each in tried if each.verdict == "FASTER" and is_proven_equal(each))


def _is_count(value: Setting) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
