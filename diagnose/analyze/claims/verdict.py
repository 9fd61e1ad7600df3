"""When does a record confirm a published claim, and when does it refute it? One rule for all."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from diagnose.analyze import batch_size
from diagnose.analyze.batch_size import Answer
from diagnose.analyze.optimize.experiment import Outcome, judge_family
from diagnose.analyze.units import TIMES, Unit
from diagnose.records.stats import Interval

Verdict = Literal["CONFIRMED", "REFUTED", "INCONCLUSIVE", "NOT DECIDED HERE", "NOT MEASURED HERE"]
Range = tuple[float, float]
# "About twice" still is, if it is off by no more than this.
ABOUT = 0.2
FOR_GPUS = "claimed for GPUs"


class NotMeasured(Exception):
    """The record does not hold the number; the message is the reason."""

    verdict: Verdict = "NOT MEASURED HERE"


class NotDecided(NotMeasured):
    """No record of such a job, machine or data can decide the claim."""

    verdict: Verdict = "NOT DECIDED HERE"


@dataclass(frozen=True)
class Evidence:
    """A record with its experiments and batch sizes already judged."""

    record: Any  # of the kind that the claim's source names
    outcomes: tuple[Outcome, ...] = ()
    answers: tuple[Answer, ...] = ()


@dataclass(frozen=True)
class Found:
    """The number, and what else to know about it."""

    value: Interval
    remark: str = ""
    unit: Unit = TIMES
    doubt: str = ""  # why a difference is not proven, though the interval shows one
    same: float = 1.0  # the value that stands for no difference


Read = Callable[..., Found]  # of the evidence, and of what the claim asks it for


@dataclass(frozen=True)
class Source:
    """The records that can decide a claim."""

    command: str  # that makes one
    kind: type[Any]
    workloads: tuple[str, ...] = ()  # none: such a record is about no workload


@dataclass(frozen=True)
class Claim:
    """One published sentence and the number that decides it."""

    id: str
    sentence: str
    expected: Range
    read: Read
    of: tuple[str | int, ...] = ()  # "apply_prompt", "training step"
    device: Literal["any", "gpu"] = "gpu"


def about(factor: float) -> Range:
    return factor * (1 - ABOUT), factor * (1 + ABOUT)


def on_gpu(id_: str, sentence: str, expected: Range, read: Read, *of: str | int) -> Claim:
    return Claim(id_, sentence, expected, read, of)


def on_any_device(id_: str, sentence: str, expected: Range, read: Read, *of: str | int) -> Claim:
    """Counted, or a matter of the host: the same on every device."""
    return Claim(id_, sentence, expected, read, of, "any")


@dataclass(frozen=True)
class Result:
    """What one record says about a claim; without a record, what would be needed."""

    claim: Claim
    verdict: Verdict
    reason: str = ""
    found: Found | None = None
    label: str = ""


def judge_claims(
    claims_by_source: Mapping[Source, Sequence[Claim]], records: Sequence[Any]
) -> list[Result]:
    """One result for each record that measured a claim, or one that says what is missing."""
    results = []
    for source, claims in claims_by_source.items():
        evidence = [_gather(each) for each in records if _is_from(each, source)]
        for claim in claims:
            judged = [judge(claim, each) for each in evidence]
            measured = [each for each in judged if each.found is not None]
            missing = Result(claim, "NOT MEASURED HERE", f"needs `{source.command}`")
            results += measured or judged[:1] or [missing]
    return results


def judge(claim: Claim, evidence: Evidence) -> Result:
    header = evidence.record.header
    device = header.machine.device
    try:
        found = claim.read(evidence, *claim.of)
    except NotMeasured as error:
        verdict, reason = error.verdict, str(error)
        if verdict == "NOT MEASURED HERE" and _lacks_gpu(claim, device):
            # To measure it would decide nothing either.
            verdict, reason = "NOT DECIDED HERE", f"{FOR_GPUS}; {reason}"
        return Result(claim, verdict, reason, label=header.label)
    return Result(claim, *decide(claim, found, device), found, header.label)


def decide(claim: Claim, found: Found, device: str) -> tuple[Verdict, str]:
    """An interval inside the expected range confirms, one outside refutes."""
    if _lacks_gpu(claim, device):
        return "NOT DECIDED HERE", FOR_GPUS
    (least, most), low, high = claim.expected, found.value.low, found.value.high
    if low is None or high is None:
        return "INCONCLUSIVE", "too few blocks for an interval"
    inside = least <= low and high <= most
    if not inside and least <= high and low <= most:
        return "INCONCLUSIVE", "the interval is partly outside the expected range"
    # What the whole family of experiments does not prove counts only against a difference.
    if found.doubt and inside != (least <= found.same <= most):
        return "INCONCLUSIVE", found.doubt
    return ("CONFIRMED" if inside else "REFUTED"), ""


def _lacks_gpu(claim: Claim, device: str) -> bool:
    return device == "cpu" and claim.device == "gpu"


def _is_from(record: Any, source: Source) -> bool:
    """A fake device and a smoke run say nothing about the world."""
    if not isinstance(record, source.kind):
        return False
    if source.workloads and record.workload.name not in source.workloads:
        return False
    return bool(record.header.source == "hardware" and record.header.effort != "smoke")


def _gather(record: Any) -> Evidence:
    comparisons = getattr(record, "comparisons", ())
    configurations = getattr(record, "configurations", ())
    return Evidence(
        record,
        judge_family(comparisons, record.header.machine),
        tuple(batch_size.judge(each) for each in configurations),
    )
