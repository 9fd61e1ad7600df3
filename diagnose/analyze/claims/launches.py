"""What does the launch map say about a claim? Counts of passes and launches, and shares of time."""

from __future__ import annotations

from diagnose.analyze.claims.judges import ClaimResult, Evidence, contrary, not_testable
from diagnose.analyze.optimize.launches import most_repeated, place
from diagnose.analyze.units import percent
from diagnose.analyze.verdicts import MATTERS
from diagnose.records.experiments import LaunchLine, LaunchMap

# Of the job in the first report, where a record does not say otherwise.
PROMPT_LENGTH = 3


def judge_loop_count(evidence: Evidence) -> ClaimResult:
    found = _loop(evidence)
    if found is None:
        return not_testable("no launch map shows a line of the original form that repeats")
    where, line = found
    batch = _setting(evidence, where, "batch_size")
    length = _setting(evidence, where, "prompt_length") or PROMPT_LENGTH
    measured = f"{place(line)} runs {line.trips} times in one step"
    if not batch:
        return not_testable("the launch map does not say its batch size")
    expected = 2 * int(length) * int(batch)
    text = f"{measured}; 2 × {int(length)} × batch {int(batch)} = {expected}"
    return ClaimResult("CONFIRMED" if line.trips == expected else "REFUTED", text)


def judge_launch_per_pass(evidence: Evidence) -> ClaimResult:
    found = _loop(evidence)
    if found is None:
        return not_testable("no launch map shows a line of the original form that repeats")
    line = found[1]
    forward, backward = line.forward / line.trips, line.backward / line.trips
    measured = (
        f"{place(line)}: {forward:.3g} operators per pass in forward and {backward:.3g} in backward"
    )
    if round(forward) != 1:
        return ClaimResult("REFUTED", measured, "one pass asks for more than one launch")
    if round(backward) == 0:
        return ClaimResult("CONFIRMED", measured)
    return ClaimResult("CONDITIONAL", measured, "on the forward pass: the backward pass adds more")


def judge_heads(evidence: Evidence) -> ClaimResult:
    """Detector and candidate head, of the step that the other changes already made fast."""
    found = next((each for each in evidence.record.maps if each.form == "optimised"), None)
    if found is None:
        return not_testable("no launch map of the optimised form was recorded")
    total = sum(line.seconds.value or 0.0 for line in found.lines)
    if not total:
        return not_testable("the launch map has no times")
    heads = sum(line.seconds.value or 0.0 for line in found.lines if _is_head(line))
    measured = f"{percent(heads / total)} of the profiled time of the optimised step"
    if heads / total > MATTERS:
        return ClaimResult("CONFIRMED", measured)
    return contrary(evidence, measured)


def _loop(evidence: Evidence) -> tuple[LaunchMap, LaunchLine] | None:
    """The repeated line of the original form that launches most."""
    for each in evidence.record.maps:
        line = most_repeated(each) if each.form == "original" else None
        if line is not None:
            return each, line
    return None


def _is_head(line: LaunchLine) -> bool:
    text = f"{line.file} {line.function} {line.code}".lower()
    return any(word in text for word in ("detector", "candidate", "heads"))


def _setting(evidence: Evidence, where: LaunchMap, name: str) -> int | float | None:
    for settings in (where.settings, evidence.record.workload.settings):
        value = settings.get(name)
        if isinstance(value, int | float) and not isinstance(value, bool):
            return value
    return None
