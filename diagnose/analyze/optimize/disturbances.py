"""What disturbed the experiments, what failed, and what was not reached?"""

from __future__ import annotations

from collections.abc import Sequence

from diagnose.analyze import flags
from diagnose.analyze.findings import Finding
from diagnose.analyze.optimize.experiment import Outcome
from diagnose.records.experiments import Comparison, OptimizeRecord


def find_disturbances(record: OptimizeRecord, outcomes: Sequence[Outcome]) -> list[Finding]:
    found = [
        *_ended(outcomes, ("FAILED", "INVALID"), "critical", "Not measured"),
        *_ended(outcomes, ("SKIPPED",), "info", "Skipped"),
    ]
    missing = find_unreached(record)
    if missing or not record.complete:
        left = ", ".join(missing) or "none, it ended after the last experiment"
        sentence, evidence = "The run was not finished.", f"not reached: {left}"
        found.append(Finding("unfinished", "flag", "critical", sentence, evidence))
    return [*found, *flags.find_flags(record.header.machine, _placed(record))]


def find_unreached(record: OptimizeRecord) -> list[str]:
    reached = {each.key for each in record.comparisons}
    return [key for key in record.planned if key not in reached]


def _placed(record: OptimizeRecord) -> list[flags.Placed]:
    """Every side that was timed, with the name of its place."""
    singles = [("", each) for each in record.comparisons]
    ladder = [("ladder, + ", each) for each in record.rungs]
    return [
        (f"{prefix}{each.key}{_published(each)}, {each.scope} ({side.name})", side)
        for prefix, each in (*singles, *ladder)
        if each.status == "done"
        for side in (each.before, each.control, each.after)
        if side is not None and side.timing.slot_seconds
    ]


def _published(comparison: Comparison) -> str:
    return " as published" if comparison.form == "as published" else ""


def _ended(
    outcomes: Sequence[Outcome], verdicts: Sequence[str], severity: flags.Severity, words: str
) -> list[Finding]:
    ended = [each for each in outcomes if each.verdict in verdicts]
    evidence = [
        f"{each.name}, {each.comparison.scope}: {each.verdict}: {each.reason}" for each in ended
    ]
    sentence = f"{words}: {name_each(ended, outcomes)}."
    return [Finding("ended", "flag", severity, sentence, "; ".join(evidence))] if ended else []


def name_each(ended: Sequence[Outcome], outcomes: Sequence[Outcome]) -> str:
    """Once; with its scope where the same change was timed in another one."""
    timed = {each.name for each in outcomes if each.timed is not None}
    names = (
        f"{each.name} ({each.comparison.scope})" if each.name in timed else each.name
        for each in ended
    )
    return ", ".join(dict.fromkeys(names))
