"""What do the DDP options say about a claim? Counts of all-reduces, bytes, crashes and gains."""

from __future__ import annotations

from diagnose.analyze.claims.judges import (
    SAVED_SHARE,
    ClaimResult,
    Evidence,
    Judge,
    contrary,
    describe,
    not_testable,
)
from diagnose.analyze.optimize.effects import find
from diagnose.analyze.optimize.experiment import Outcome, memory_change
from diagnose.analyze.scaling.options import count_all_reduces
from diagnose.analyze.units import percent, scaled

ADVISED = ("accumulate_4x32", "bucket_cap_200", "bucket_view", "static_graph")


def judge_published_no_sync(evidence: Evidence) -> ClaimResult:
    """Counted, so no device is needed to refute it."""
    published = find(evidence.outcomes, "accumulate_4", form="as published")
    counts = None if published is None else count_all_reduces(published)
    if published is None or counts is None:
        return not_testable("the all-reduces of the published form were not counted")
    measured = f"{counts[0]} → {counts[1]} all-reduces per optimiser step; {describe(published)}"
    if counts[1] < counts[0]:
        return ClaimResult("CONFIRMED", measured)
    return ClaimResult("REFUTED", measured, "the forward pass must stand inside no_sync() too")


def judge_accumulation(evidence: Evidence) -> ClaimResult:
    outcome = find(evidence.outcomes, "accumulate_4")
    counts = None if outcome is None else count_all_reduces(outcome)
    if outcome is None or counts is None:
        return not_testable(_why(outcome, "accumulate_4"))
    measured = f"{counts[0]} → {counts[1]} all-reduces per optimiser step; {describe(outcome)}"
    if counts[0] != 4 * counts[1]:
        return ClaimResult("REFUTED", measured)
    condition = "on forward and backward inside no_sync() and a micro-batch that stays as it was"
    return ClaimResult("CONDITIONAL", measured, condition)


def judge_same_batch(evidence: Evidence) -> ClaimResult:
    """As advised, the batch is divided, so a step of as many samples exchanges as much."""
    outcome = find(evidence.outcomes, "accumulate_4x32")
    counts = None if outcome is None else count_all_reduces(outcome)
    if outcome is None or counts is None:
        return not_testable(_why(outcome, "accumulate_4x32"))
    measured = f"{counts[0]} → {counts[1]} all-reduces for as many samples; {describe(outcome)}"
    if counts[1] < counts[0]:
        return ClaimResult("CONFIRMED", measured)
    condition = "75 % less is true only against an exchange after every micro-batch"
    return ClaimResult("REFUTED", measured, condition)


def judge_fewer_all_reduces(key: str) -> Judge:
    def judge(evidence: Evidence) -> ClaimResult:
        outcome = find(evidence.outcomes, key)
        counts = None if outcome is None else count_all_reduces(outcome)
        if outcome is None or counts is None:
            return not_testable(_why(outcome, key))
        measured = f"{counts[0]} → {counts[1]} all-reduces per optimiser step"
        if counts[1] < counts[0]:
            return ClaimResult("CONFIRMED", measured)
        condition = "on a model larger than one bucket"
        return ClaimResult("CONDITIONAL", measured, condition)

    return judge


def judge_static_graph_no_sync(evidence: Evidence) -> ClaimResult:
    outcome = find(evidence.outcomes, "static_graph_no_sync")
    if outcome is None:
        return not_testable("static_graph with no_sync() was not tried")
    if outcome.verdict == "FAILED":
        return ClaimResult("REFUTED", f"torch fails: {outcome.reason}", "use one of the two")
    if outcome.timed is None:
        return not_testable(f"{outcome.name} {outcome.verdict}: {outcome.reason}")
    return ClaimResult("CONFIRMED", describe(outcome))


def judge_advice(evidence: Evidence) -> ClaimResult:
    """Each advised option on its own; not one of them may be said to help by the others."""
    tried = [find(evidence.outcomes, key) for key in ADVISED]
    timed = [each for each in tried if each is not None and each.timed is not None]
    if not timed:
        return not_testable("none of the advised options was timed")
    measured = "; ".join(describe(each) for each in timed)
    faster = [each.name for each in timed if each.verdict == "FASTER"]
    if len(faster) == len(timed):
        return ClaimResult("CONFIRMED", measured)
    if faster:
        return ClaimResult("CONDITIONAL", measured, f"on which: {', '.join(faster)} alone")
    if all(each.verdict == "INCONCLUSIVE" for each in timed):
        return ClaimResult("NOT TESTABLE HERE", measured, "undecided")
    return contrary(evidence, measured)


def judge_view_memory(evidence: Evidence) -> ClaimResult:
    saved, missing = _saved_by_view(evidence)
    if saved is None:
        return not_testable(missing)
    measured = f"the peak falls by {scaled(saved, 'B')}" if saved > 0 else "the peak does not fall"
    return ClaimResult("CONFIRMED", measured) if saved > 0 else contrary(evidence, measured)


def judge_bucket_memory(evidence: Evidence, gradient_bytes: int) -> ClaimResult:
    """What the view saves is what the buckets took beside the gradients."""
    saved, missing = _saved_by_view(evidence)
    if saved is None or not gradient_bytes:
        return not_testable(missing or "the bytes of all gradients were not recorded")
    measured = (
        f"without a view the peak is {scaled(saved, 'B')} higher, "
        f"{percent(saved / gradient_bytes)} of the {scaled(gradient_bytes, 'B')} of gradients"
    )
    if saved >= SAVED_SHARE * gradient_bytes:
        return ClaimResult("CONFIRMED", measured)
    if saved > 0:
        return ClaimResult("CONDITIONAL", measured, "on what else is alive at the peak")
    return contrary(evidence, measured)


def judge_out_of_memory(evidence: Evidence) -> ClaimResult:
    """An open question: buckets cost memory, but nobody saw which allocation failed."""
    saved, missing = _saved_by_view(evidence)
    if saved is None:
        return not_testable(missing)
    return ClaimResult(
        "NOT TESTABLE HERE",
        f"buckets beside the gradients take {scaled(max(0.0, saved), 'B')}",
        "open: it needs the card of 24 GB and a batch above 128",
    )


def _saved_by_view(evidence: Evidence) -> tuple[float | None, str]:
    outcome = find(evidence.outcomes, "bucket_view")
    if outcome is None or outcome.timed is None:
        return None, _why(outcome, "bucket_view")
    change = memory_change(outcome.comparison)
    return (None, change.reason) if change.value is None else (-change.value, "")


def _why(outcome: Outcome | None, key: str) -> str:
    if outcome is None:
        return f"the experiment {key} was not run"
    if outcome.timed is None:
        return f"{outcome.name} {outcome.verdict}: {outcome.reason}"
    return f"the all-reduces of {key} were not counted"
