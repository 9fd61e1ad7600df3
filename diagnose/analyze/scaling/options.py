"""Which DDP option gives scaling back? The options judged like every other experiment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from diagnose.analyze import derive
from diagnose.analyze.optimize.experiment import Outcome, judge_all, memory_change, worst_check
from diagnose.analyze.units import milliseconds, scaled, spread
from diagnose.records.experiments import OptimizeRecord
from diagnose.records.header import Setting
from diagnose.records.ranks import ScalingRecord
from diagnose.records.run import Measurement
from diagnose.render.markdown import Align, Footnotes, Markup, table
from diagnose.render.retell import retell

_HEADERS = (
    *("option", "before → after", "all-reduces per optimiser step", "before ms", "after ms"),
    *(Markup("speed-up [95 % interval]"), "verdict", "equal results?", "peak memory", "blocks"),
)
_ALIGN: tuple[Align, ...] = (
    *("left", "left", "right", "right", "right"),
    *("right", "left", "left", "right", "right"),
)
_WORDS = (
    "Times are those of the slowest rank. FASTER and SLOWER: the whole interval lies beyond the "
    "margin (1 %, or what the same code differs from itself by), and stays proven among all "
    "options (Holm, 5 %); SAME: it lies within. Where results differ there is no speed to tell, "
    "and an option that failed is a row with its reason."
)


def as_experiments(record: ScalingRecord) -> OptimizeRecord:
    """The options as a record of experiments, so that one engine judges both."""
    keys = tuple(dict.fromkeys(each.key for each in record.comparisons))
    experiments = retell(
        record, OptimizeRecord, seed=record.header.seed, workload=record.workload, planned=keys
    )
    return replace(experiments, comparisons=record.comparisons)


def judge_options(record: ScalingRecord) -> tuple[Outcome, ...]:
    return judge_all(as_experiments(record))


def count_all_reduces(outcome: Outcome) -> tuple[int, int] | None:
    """Per optimiser step, before and after; None where they were not counted."""
    facts = outcome.comparison.facts
    before, after = facts.get("all_reduces_before"), facts.get("all_reduces_after")
    if not _is_count(before) or not _is_count(after):
        return None
    return int(before or 0), int(after or 0)


def is_proven_equal(outcome: Outcome) -> bool:
    equality = outcome.comparison.equality
    return (
        equality is not None
        and equality.claim == "equal"
        and bool(equality.checks)
        and all(check.equal for check in equality.checks)
    )


def option_table(outcomes: Sequence[Outcome]) -> list[str]:
    """One row per option, a failed one with its reason below."""
    if not outcomes:
        return ["No option was tried."]
    notes = Footnotes()
    rows = [_row(each, notes) for each in outcomes]
    return [
        table(_HEADERS, rows, _ALIGN),
        *(["\n".join(notes.lines())] if notes.lines() else []),
        _WORDS,
    ]


def _row(outcome: Outcome, notes: Footnotes) -> list[str]:
    comparison, timed = outcome.comparison, outcome.timed
    why = f"{outcome.verdict}: {outcome.reason}"
    counts = count_all_reduces(outcome)
    missing = why if timed is None else "they were not counted"
    verdict: str = outcome.verdict
    if timed is not None and outcome.reason:
        verdict = notes.doubt(outcome.verdict, outcome.reason)
    return [
        outcome.name,
        f"{comparison.before_text} → {comparison.after_text}",
        notes.missing(missing) if counts is None else f"{counts[0]} → {counts[1]}",
        *(
            notes.missing(why) if timed is None or side is None else _milliseconds(side)
            for side in (comparison.before, comparison.after)
        ),
        notes.missing(why) if timed is None else f"{spread(timed.speedup)}x",
        verdict,
        _equality(outcome, notes),
        _memory(outcome, notes, why),
        notes.missing(why) if timed is None else str(timed.blocks),
    ]


def _milliseconds(side: Measurement) -> str:
    return milliseconds(derive.step_seconds(side))


def _equality(outcome: Outcome, notes: Footnotes) -> str:
    equality = outcome.comparison.equality
    if equality is None or not equality.checks:
        return notes.missing("no proof of equal results was recorded")
    worst = worst_check(equality.checks)
    found = "shape or finiteness differs" if worst.worst is None else f"worst {worst.worst:.1e}"
    detail = f"({worst.name}: {found}, allowed {worst.tolerance:.0e})"
    if all(check.equal for check in equality.checks):
        return f"yes {detail}"
    return f"{'no' if equality.claim == 'equal' else 'not claimed'} {detail}"


def _memory(outcome: Outcome, notes: Footnotes, why: str) -> str:
    if outcome.timed is None:
        return notes.missing(why)
    change = memory_change(outcome.comparison)
    if change.value is None:
        return notes.missing(change.reason)
    return f"{'+' if change.value > 0 else ''}{scaled(change.value, 'B')}"


def _is_count(value: Setting) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
