"""Is the change real? The verdict on one experiment, and on all experiments of a record together.

A verdict starts undecided and is raised by evidence alone. What was not proven equal has no
speed, and what was disturbed has no verdict.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from diagnose.analyze import derive
from diagnose.analyze.flags import FLAGS
from diagnose.analyze.units import number, percent, spread
from diagnose.records import sequential, stats
from diagnose.records.experiments import Comparison, EqualityCheck, OptimizeRecord, find_blocks
from diagnose.records.header import Machine, Reading
from diagnose.records.run import Measurement
from diagnose.records.sequential import SAME_MARGIN, Block
from diagnose.records.stats import SMALLEST_MARGIN, Interval

Verdict = Literal[
    "FASTER",
    "SLOWER",
    "SAME",
    "INCONCLUSIVE",
    "NOT_EQUAL",
    "OTHER_MODEL",
    "OTHER_ANSWERS",
    "INVALID",
    "FAILED",
    "SKIPPED",
]

# At 95 % the A/A control of a sound harness raises a false alarm in every twentieth experiment.
CONTROL_CONFIDENCE = 0.99

OTHER_MODEL_REASON = (
    "the sides train different models, so neither is faster; compare their work per second"
)
OTHER_ANSWERS_REASON = (
    "the sides give different answers, so neither is faster; compare coverage and time"
)

_ENDED: dict[str, tuple[Verdict, str]] = {
    "failed": ("FAILED", ""),
    "hung": ("FAILED", "it hung and was stopped: "),
    "skipped": ("SKIPPED", ""),
    "invalid": ("INVALID", ""),
}


@dataclass(frozen=True)
class Timed:
    """What the interleaved blocks say. Speed-ups are ratios: 2.0 is twice as fast."""

    speedup: Interval
    range: tuple[float, float]  # of the blocks' own ratios
    control: Interval  # the same ratio of the code to itself
    cross_check: Interval  # paired t instead of ranks
    detectable: Reading
    p_value: float
    blocks: int


@dataclass(frozen=True)
class Outcome:
    """One experiment judged. `timed` is None wherever no speed may be shown."""

    comparison: Comparison
    verdict: Verdict
    reason: str = ""
    timed: Timed | None = None
    flags: tuple[str, ...] = ()  # what disturbed it, each with its evidence
    family_p: float | None = None  # after Holm

    @property
    def name(self) -> str:
        published = " as published" if self.comparison.form == "as published" else ""
        return f"{self.comparison.key}{published}"


def judge_all(record: OptimizeRecord) -> tuple[Outcome, ...]:
    """Every experiment judged, in the record's order, with Holm over all that were timed."""
    return judge_family(record.comparisons, record.header.machine)


def judge_family(comparisons: Sequence[Comparison], machine: Machine) -> tuple[Outcome, ...]:
    """Judged together: the more of them, the more one has to show."""
    outcomes = [judge(each, machine) for each in comparisons]
    family = [index for index, each in enumerate(outcomes) if each.timed is not None]
    adjusted = stats.holm([_timed(outcomes[index]).p_value for index in family])
    for index, p_value in zip(family, adjusted, strict=True):
        outcomes[index] = _within_family(outcomes[index], p_value, len(family))
    return tuple(outcomes)


def judge(comparison: Comparison, machine: Machine) -> Outcome:
    """One experiment on its own."""
    if comparison.status in _ENDED:
        verdict, prefix = _ENDED[comparison.status]
        return Outcome(comparison, verdict, prefix + (comparison.reason or "no reason recorded"))
    equality = comparison.equality
    if equality is None or not equality.checks:
        return Outcome(comparison, "INVALID", "no proof of equal results was recorded")
    if equality.claim == "equal" and not all(check.equal for check in equality.checks):
        return Outcome(comparison, "NOT_EQUAL", describe_inequality(equality.checks))
    sides = comparison.before, comparison.control, comparison.after
    if sides[0] is None or sides[1] is None or sides[2] is None:
        return Outcome(comparison, "INVALID", "not every side of the experiment was timed")
    before, control, after = sides[0], sides[1], sides[2]
    try:
        timed = measure_speedup(before, control, after)
    except ValueError as error:
        return Outcome(comparison, "INVALID", str(error))
    fatal, flags = _disturbances((before, control, after), machine)
    if fatal:
        return Outcome(comparison, "INVALID", "; ".join(fatal), flags=(*fatal, *flags))
    if changes_model(comparison):
        return Outcome(comparison, "OTHER_MODEL", OTHER_MODEL_REASON, flags=flags)
    if changes_answers(comparison):
        return Outcome(comparison, "OTHER_ANSWERS", OTHER_ANSWERS_REASON, flags=flags)
    verdict, reason = decide(timed)
    remarks = (*flags, *_clock_remark(verdict, timed, before, after))
    return Outcome(comparison, verdict, reason, timed, remarks)


def changes_model(comparison: Comparison) -> bool:
    """Whether the sides train different models, so that neither can be called faster."""
    return comparison.facts.get("changes_model") is True


def changes_answers(comparison: Comparison) -> bool:
    """Whether a change that may cut answers short really gave other ones."""
    may_change, proof = comparison.facts.get("may_change_answers"), comparison.equality
    return may_change is True and (proof is None or not all(each.equal for each in proof.checks))


def time_ratio(comparison: Comparison) -> Interval | None:
    """Time before over time after, whatever the answers; a speed-up only where they are equal."""
    before, control, after = comparison.before, comparison.control, comparison.after
    if comparison.status != "done" or before is None or control is None or after is None:
        return None
    try:
        return measure_speedup(before, control, after).speedup
    except ValueError:
        return None


def measure_speedup(before: Measurement, control: Measurement, after: Measurement) -> Timed:
    blocks = find_blocks(before, control, after)
    ratios = [math.log(each.before * each.again) / 2 - math.log(each.after) for each in blocks]
    effect = stats.minimum_detectable_effect(ratios)
    return Timed(
        speedup=sequential.ratio_interval(blocks),
        range=(math.exp(min(ratios)), math.exp(max(ratios))),
        control=_control(blocks).map(math.exp),
        cross_check=stats.paired_t(ratios).map(math.exp),
        detectable=Reading(None, "one block has no scatter") if effect is None else Reading(effect),
        p_value=sequential.anytime_p(blocks),
        blocks=len(blocks),
    )


def _control(blocks: Sequence[Block], confidence: float = stats.CONFIDENCE) -> Interval:
    return stats.hodges_lehmann([math.log(a / b) for a, b, _ in blocks], confidence)


def decide(timed: Timed) -> tuple[Verdict, str]:
    """The verdict of a sound measurement, with a reason where it is undecided."""
    verdict = sequential.decide(timed.speedup)
    if verdict != "INCONCLUSIVE":
        return verdict, ""
    if timed.speedup.ends is None:
        least, most = timed.range
        return verdict, (
            f"{timed.blocks} blocks are too few for an interval "
            f"({sequential.fewest_blocks()} needed); their ratios range from {number(least)} to "
            f"{number(most)}"
        )
    return verdict, (
        f"the interval lies neither beyond {percent(SMALLEST_MARGIN)}, where a change counts, nor "
        f"within {percent(SAME_MARGIN)}, where there is none"
    )


def worst_check(checks: Sequence[EqualityCheck]) -> EqualityCheck:
    """The check that says most against equality: a failed one, by how far it misses."""

    def severity(check: EqualityCheck) -> tuple[bool, float]:
        return not check.equal, math.inf if check.worst is None else check.worst

    return max(checks, key=severity)


def describe_inequality(checks: Sequence[EqualityCheck]) -> str:
    failed = [check for check in checks if not check.equal]
    names = [check.name for check in failed]
    others = f" and {len(names) - 2} more" if len(names) > 2 else ""
    remarks = dict.fromkeys(check.remark for check in failed if check.remark)
    text = f"{', '.join(names[:2])}{others} differ: {describe_worst(failed)}"
    return text + "".join(f"; {remark}" for remark in remarks)


def describe_worst(checks: Sequence[EqualityCheck]) -> str:
    """By how much the quantity differs that says most against equality, and in how many samples."""
    worst = worst_check(checks)
    text = f"{worst.name} by up to {worst.worst or 0:.2g}, allowed {worst.tolerance:.2g}"
    if worst.worst is None:
        text = f"shape or finiteness of {worst.name}"
    counted = [c for c in checks if not c.equal and c.differing_samples is not None]
    if counted:
        most = max(counted, key=lambda check: check.differing_samples or 0)
        text += f"; {most.differing_samples} of {most.samples} samples differ"
    return text


def memory_change(comparison: Comparison) -> Reading:
    """Bytes that the peak rises by; negative is memory saved."""
    before, after = comparison.before, comparison.after
    if before is None or after is None:
        return Reading(None, "nothing was timed")
    for side in (before, after):
        if side.peak_bytes.value is None:
            return side.peak_bytes
    return Reading((after.peak_bytes.value or 0.0) - (before.peak_bytes.value or 0.0))


def energy_change(comparison: Comparison) -> Reading:
    """Joules per sample after over before, less 1."""
    before, after = comparison.before, comparison.after
    if before is None or after is None:
        return Reading(None, "nothing was timed")
    first, second = derive.joules_per_sample(before), derive.joules_per_sample(after)
    if not first.value or second.value is None:
        return Reading(None, first.reason or second.reason or "0 J before")
    return Reading(second.value / first.value - 1)


def _within_family(outcome: Outcome, p_value: float, family: int) -> Outcome:
    outcome = replace(outcome, family_p=p_value)
    if outcome.verdict not in ("FASTER", "SLOWER") or p_value <= sequential.FAMILY_ERROR:
        return outcome
    blocks, needed = _timed(outcome).blocks, sequential.fewest_blocks(family)
    reason = (
        f"{outcome.verdict} alone, but not among {family} experiments: "
        f"p = {p_value:.2g} after Holm's correction"
    )
    if blocks < needed:
        reason += f"; {needed} blocks could prove it, {blocks} were run"
    return replace(outcome, verdict="INCONCLUSIVE", reason=reason)


def _disturbances(
    sides: Sequence[Measurement], machine: Machine
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """What makes the experiment invalid, and what the reader must only know."""
    before, control, after = sides
    fatal = _broken(sides, machine)
    noise = _control(find_blocks(before, control, after), CONTROL_CONFIDENCE)
    if noise.low is not None and noise.high is not None and not noise.low <= 0 <= noise.high:
        fatal.append(
            "HARNESS_BIASED: the same code against itself comes out at "
            f"{spread(noise.map(math.exp))}x (99 % interval)"
        )
    names = ("before", "control", "after")
    flags = [
        f"NOT_STEADY: {name}: {side.timing.not_steady}"
        for name, side in zip(names, sides, strict=True)
        if side.timing.not_steady
    ]
    if before.samples_per_step != after.samples_per_step:
        flags.append(
            f"PER_SAMPLE: the sides process {before.samples_per_step} and "
            f"{after.samples_per_step} samples per step, so times per sample are compared"
            if before.samples_per_step and after.samples_per_step
            else "SAMPLES_UNKNOWN: it is not known whether both sides process as many samples"
        )
    return tuple(fatal), tuple(flags)


def _broken(sides: Sequence[Measurement], machine: Machine) -> list[str]:
    """By the rules of every run; other work on the host already shows in the A/A control."""
    gpus = replace(machine, cpu_busy_before=Reading(None, "the control shows it"))
    measured = [(side.name, side) for side in sides]
    found = []
    for flag in FLAGS:
        if flag.kind in ("throttled", "shared"):
            for severity, text in flag.signs(gpus, measured):
                if severity == "critical" or flag.kind == "shared":
                    found.append(f"{flag.kind.upper()}: {text}")
    return found


def _clock_remark(
    verdict: Verdict, timed: Timed, before: Measurement, after: Measurement
) -> tuple[str, ...]:
    """A change in seconds that is none in clock cycles came from the clock."""
    if verdict not in ("FASTER", "SLOWER") or not before.gpus or not after.gpus:
        return ()
    first, second = before.gpus[0].sm_hertz.value, after.gpus[0].sm_hertz.value
    if not first or not second or timed.speedup.ends is None:
        return ()
    cycles = first / second
    if sequential.decide(timed.speedup.map(lambda each: each * cycles)) == "SAME":
        return ("CLOCK_NOT_CODE: the sides take equally many clock cycles",)
    return ()


def _timed(outcome: Outcome) -> Timed:
    if outcome.timed is None:
        raise ValueError(f"{outcome.name} was not timed")
    return outcome.timed
