"""When is a suspect guilty, innocent, or not proven either way?"""

from __future__ import annotations

from diagnose.analyze.derive import Difference
from diagnose.analyze.findings import Finding
from diagnose.analyze.units import milliseconds, percent, percent_interval
from diagnose.records.stats import Interval

# Less than this share of a step is not worth a change of code, and is within what two runs of
# the same code on a shared machine differ by.
MATTERS = 0.05
# A part that takes half of the step hides every other one.
DOMINATES = 0.50


def judge_cost(kind: str, part: str, cost: Difference, evidence: str, advice: str) -> Finding:
    """The verdict on a part of the step from what it adds, block by block."""
    if cost.share.center > MATTERS and cost.share.low is not None and cost.share.low > 0:
        return Finding(
            kind,
            "cause",
            "critical" if cost.share.center > DOMINATES else "warning",
            f"{part} takes {percent(cost.share.center)} of the step.",
            evidence,
            advice,
        )
    if within(cost.share, MATTERS):
        return excluded(kind, part, evidence)
    return cannot_tell(kind, part, evidence)


def cost_text(cost: Difference) -> str:
    return (
        f"{milliseconds(cost.seconds)} ms, {percent_interval(cost.share)} of the step, "
        f"over {cost.blocks} paired blocks"
    )


def within(interval: Interval, bound: float) -> bool:
    return (
        interval.low is not None
        and interval.high is not None
        and -bound <= interval.low
        and interval.high <= bound
    )


def excluded(kind: str, what: str, evidence: str) -> Finding:
    return Finding(kind, "excluded", "info", f"{what} is not the cause.", evidence)


def cannot_tell(kind: str, what: str, evidence: str) -> Finding:
    return Finding(
        kind,
        "cannot tell",
        "info",
        f"This run cannot tell about {what[0].lower()}{what[1:]}.",
        evidence,
        "Run again with --full on a quiet machine for a narrower interval."
        if "[" in evidence
        else "",
    )
