"""What do the experiments of a record say about a claim? One judge per kind of claim."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from diagnose.analyze import derive
from diagnose.analyze.optimize.effects import (
    backward_share,
    find,
    full_step,
    saved_seconds,
    share_of_step,
)
from diagnose.analyze.optimize.experiment import Outcome
from diagnose.analyze.units import milliseconds, percent, percent_interval, scaled, spread
from diagnose.analyze.verdicts import MATTERS, within
from diagnose.records.experiments import OptimizeRecord
from diagnose.records.header import Setting
from diagnose.records.run import Measurement

ClaimVerdict = Literal["CONFIRMED", "REFUTED", "CONDITIONAL", "NOT TESTABLE HERE"]

# Of the job in the first report.
VOCABULARY = 21_128
FLOAT_BYTES = 4
# A tensor counts as saved if this share of its bytes is: allocators round.
SAVED_SHARE = 0.9
# These start from the optimised step: their gains are those of another job.
NOT_IN_THE_REPORT = ("keep_memory", "labelled_only")


@dataclass(frozen=True)
class ClaimResult:
    """What became of a claim. `condition` says on what it depends, or why it is not testable."""

    verdict: ClaimVerdict
    measured: str
    condition: str = ""


@dataclass(frozen=True)
class Evidence:
    """A record with its experiments already judged."""

    record: OptimizeRecord
    outcomes: tuple[Outcome, ...]


Judge = Callable[[Evidence], ClaimResult]


@dataclass(frozen=True)
class Claim:
    """One sentence of a published report, and how it is tried."""

    id: str
    says: str
    judge: Judge


def not_testable(reason: str) -> ClaimResult:
    return ClaimResult("NOT TESTABLE HERE", "", reason)


def needs(what: str) -> Judge:
    """A claim that no record of this kind can decide."""
    return lambda evidence: not_testable(what)


def speeds_up(key: str, scope: str | None = None) -> Judge:
    """The claim that a change makes something faster."""

    def judge(evidence: Evidence) -> ClaimResult:
        outcome = find(evidence.outcomes, key, scope)
        if outcome is None or outcome.timed is None:
            return not_timed(outcome, key)
        if outcome.verdict == "FASTER":
            return ClaimResult("CONFIRMED", describe(outcome))
        return undecided(outcome) or contrary(evidence, describe(outcome), _is_on_host(key))

    return judge


def changes_nothing(key: str) -> Judge:
    """The claim that a factor does not matter."""

    def judge(evidence: Evidence) -> ClaimResult:
        outcome = find(evidence.outcomes, key)
        if outcome is None or outcome.timed is None:
            return not_timed(outcome, key)
        measured = describe(outcome)
        if outcome.verdict == "SAME":
            return ClaimResult("CONFIRMED", measured)
        share = share_of_step(outcome.comparison, full_step(evidence.outcomes))
        if share is not None and within(share, MATTERS):
            moved = f"{measured}; of a training step that is {percent_interval(share)} at most"
            return ClaimResult("CONDITIONAL", moved, "on the step: it hides a batch this short")
        return undecided(outcome) or contrary(evidence, measured, _is_on_host(key))

    return judge


def computes_the_same(key: str, condition: str) -> Judge:
    """The claim that the published form of a change gives the results of the original."""

    def judge(evidence: Evidence) -> ClaimResult:
        published = [
            each
            for each in evidence.outcomes
            if each.comparison.key == key and each.comparison.form == "as published"
        ]
        wrong = [each for each in published if each.verdict == "NOT_EQUAL"]
        right = [each for each in published if _is_proven_equal(each)]
        if not wrong and not right:
            reason = published[0].reason if published else "the published form was not tried"
            return not_testable(reason)
        if not wrong:
            return ClaimResult("CONFIRMED", f"equal results: {_after_texts(right)}")
        measured = f"{_after_texts(wrong)}: {wrong[0].reason}"
        if right:
            measured += f"; equal results: {_after_texts(right)}"
            return ClaimResult("CONDITIONAL", measured, condition)
        return ClaimResult("REFUTED", measured, f"it would need {condition.removeprefix('on ')}")

    return judge


def contrary(evidence: Evidence, measured: str, on_host: bool = False) -> ClaimResult:
    """A measurement against a claim refutes it only on the kind of device it was made for."""
    return contrary_on(evidence.record.header.machine.device, measured, on_host)


def contrary_on(device: str, measured: str, on_host: bool = False) -> ClaimResult:
    if device == "cpu" and not on_host:
        condition = "on the device: claimed of a GPU, and not so on this CPU"
        return ClaimResult("CONDITIONAL", measured, condition)
    return ClaimResult("REFUTED", measured)


def judge_loading(evidence: Evidence) -> ClaimResult:
    """A batch of the original loader against the step that waits for it."""
    step = full_step(evidence.outcomes)
    batches = [
        each.comparison.before
        for each in evidence.outcomes
        if each.timed is not None and each.comparison.scope == "batch"
    ]
    batch = next((each for each in batches if each is not None), None)
    if step is None or batch is None or batch.samples_per_step != step.samples_per_step:
        return not_testable("a batch and a step of as many samples were not both timed")
    loading, whole = derive.step_seconds(batch), derive.step_seconds(step)
    share = loading.center / whole.center
    measured = (
        f"a batch loads in {milliseconds(loading)} ms, the optimised step takes "
        f"{milliseconds(whole)} ms: {percent(share)}"
    )
    if share <= MATTERS:
        return ClaimResult("CONFIRMED", measured)
    if share < 1:
        return ClaimResult("CONDITIONAL", measured, "on workers that load while the step runs")
    return contrary(evidence, measured)


def judge_core_bottleneck(evidence: Evidence) -> ClaimResult:
    loop = find(evidence.outcomes, "apply_prompt", "training step")
    if loop is None or loop.timed is None:
        return not_timed(loop, "apply_prompt")
    measured = describe(loop)
    if loop.verdict != "FASTER":
        return undecided(loop) or contrary(evidence, measured)
    faster = [
        each
        for each in evidence.outcomes
        if each.comparison.scope == "training step"
        and each.comparison.form == "after"
        and each.comparison.key not in ("apply_prompt", "all_together", *NOT_IN_THE_REPORT)
        and each.verdict == "FASTER"
        and each.timed is not None
        and each.timed.speedup.center > loop.timed.speedup.center
    ]
    if not faster:
        return ClaimResult("CONFIRMED", f"{measured}; no other single change gains as much")
    others = "; ".join(describe(each) for each in faster)
    return ClaimResult("CONDITIONAL", f"{measured}, but {others}", "on size and device")


def judge_where_the_loop_costs(evidence: Evidence) -> ClaimResult:
    forward = find(evidence.outcomes, "apply_prompt", "part, forward")
    step = find(evidence.outcomes, "apply_prompt", "part, forward and backward")
    if forward is None or step is None or forward.timed is None or step.timed is None:
        return not_testable("the forward pass and both passes of the prompts were not both timed")
    share = backward_share(forward, step)
    saved, in_forward = saved_seconds(step.comparison), saved_seconds(forward.comparison)
    if share is None or saved is None or in_forward is None:
        return not_testable("the effect on both passes is not proven")
    measured = (
        f"of {milliseconds(saved)} ms saved in both passes the forward pass saves "
        f"{milliseconds(in_forward)} ms; {percent(share)} sits in the backward pass"
    )
    if share <= 0.5:
        return ClaimResult("CONFIRMED", measured)
    return contrary(evidence, measured)


def judge_saved_bytes(evidence: Evidence) -> ClaimResult:
    outcome = next(
        (
            each
            for each in evidence.outcomes
            if each.comparison.key == "gated_fusion" and "saved_bytes" in each.comparison.facts
        ),
        None,
    )
    if outcome is None:
        return not_testable("the bytes that the fusion saves were not recorded")
    saved = outcome.comparison.facts["saved_bytes"]
    settings = evidence.record.workload.settings
    batch, length = settings.get("batch_size"), settings.get("sequence_length")
    if not is_number(saved) or not is_number(batch) or not is_number(length):
        return not_testable("the record does not say how large the tensor is")
    vocabulary = settings.get("vocab", VOCABULARY)
    tensor = float(batch or 0) * float(length or 0) * float(vocabulary or 0) * FLOAT_BYTES
    share = float(saved or 0) / tensor
    measured = (
        f"{scaled(float(saved or 0), 'B')} saved here, {percent(share)} of one tensor of batch "
        f"{batch} × length {length} × {vocabulary}"
    )
    if share >= SAVED_SHARE:
        return ClaimResult("CONFIRMED", measured)
    if share > 0:
        return ClaimResult("CONDITIONAL", measured, "on what else keeps a tensor of that size")
    return ClaimResult("REFUTED", measured)


def judge_precision_fallback(evidence: Evidence) -> ClaimResult:
    outcome = find(evidence.outcomes, "mixed_precision")
    operators = None if outcome is None else outcome.comparison.facts.get("fp32_operators")
    if operators is None:
        return not_testable("no list of operators that stay in float32 was recorded")
    if not operators:
        return contrary(evidence, "no operator stays in float32")
    return ClaimResult("CONFIRMED", f"stay in float32: {operators}")


def judge_compile(evidence: Evidence) -> ClaimResult:
    result = speeds_up("torch_compile", "training step")(evidence)
    outcome = find(evidence.outcomes, "torch_compile", "training step")
    steps = None if outcome is None else outcome.comparison.facts.get("steps_to_pay_back")
    if result.verdict != "CONFIRMED" or not is_number(steps):
        return result
    return ClaimResult("CONDITIONAL", result.measured, f"on a run of more than {steps} steps")


def judge_all_together(evidence: Evidence) -> ClaimResult:
    claimed = 2.2
    outcome = find(evidence.outcomes, "all_together", "training step")
    if outcome is None or outcome.timed is None:
        return not_timed(outcome, "all_together")
    measured = describe(outcome)
    if outcome.verdict != "FASTER":
        return undecided(outcome) or contrary(evidence, measured)
    high = outcome.timed.speedup.high
    if high is not None and high >= claimed:
        return ClaimResult("CONFIRMED", measured)
    return ClaimResult("CONDITIONAL", measured, "on size, batch and device: the gain is less here")


def judge_power(evidence: Evidence) -> ClaimResult:
    sides = _whole_sides(evidence)
    if sides is None:
        return not_testable("all changes together were not timed")
    before, after = (derive.watts(side) for side in sides)
    if before.value is None or after.value is None:
        return not_testable(before.reason or after.reason)
    rise = after.value / before.value - 1
    return _rise(evidence, f"{before.value:.0f} W → {after.value:.0f} W", rise, 0.60)


def judge_utilization(evidence: Evidence) -> ClaimResult:
    sides = _whole_sides(evidence)
    if sides is None:
        return not_testable("all changes together were not timed")
    before, after = (derive.power_share(side) for side in sides)
    if before.value is None or after.value is None:
        return not_testable(before.reason or after.reason)
    text = f"{percent(before.value)} → {percent(after.value)} of the power limit"
    return _rise(evidence, text, after.value - before.value, 0.27)


def describe(outcome: Outcome) -> str:
    if outcome.timed is None:
        return f"{outcome.name}: {outcome.verdict}"
    scope = outcome.comparison.scope
    return f"{outcome.name}, {scope}: {spread(outcome.timed.speedup)}x, {outcome.verdict}"


def _rise(evidence: Evidence, text: str, rise: float, claimed: float) -> ClaimResult:
    measured = f"{text} (one reading a side, no interval)"
    # Two digits were claimed, so the last of them may be rounded.
    if rise >= claimed - 0.005:
        return ClaimResult("CONFIRMED", measured)
    if rise > 0:
        return ClaimResult("CONDITIONAL", measured, "on the device: it rises by less here")
    return contrary(evidence, measured)


def not_timed(outcome: Outcome | None, key: str) -> ClaimResult:
    if outcome is None:
        return not_testable(f"the experiment {key} was not run")
    if outcome.verdict == "NOT_EQUAL":
        return ClaimResult("REFUTED", f"{outcome.name}: {outcome.reason}")
    return not_testable(f"{outcome.name} {outcome.verdict}: {outcome.reason}")


def _is_on_host(key: str) -> bool:
    """Data are loaded by the host, whatever device trains on them."""
    return key.startswith(("dataset_", "loader_"))


def undecided(outcome: Outcome) -> ClaimResult | None:
    if outcome.verdict != "INCONCLUSIVE":
        return None
    return ClaimResult("NOT TESTABLE HERE", describe(outcome), f"undecided: {outcome.reason}")


def _is_proven_equal(outcome: Outcome) -> bool:
    equality = outcome.comparison.equality
    return (
        outcome.verdict not in ("FAILED", "SKIPPED", "NOT_EQUAL")
        and equality is not None
        and bool(equality.checks)
        and all(check.equal for check in equality.checks)
    )


def _after_texts(outcomes: list[Outcome]) -> str:
    return ", ".join(dict.fromkeys(each.comparison.after_text for each in outcomes))


def _whole_sides(evidence: Evidence) -> tuple[Measurement, Measurement] | None:
    outcome = find(evidence.outcomes, "all_together", "training step")
    if outcome is None or outcome.timed is None:
        return None
    before, after = outcome.comparison.before, outcome.comparison.after
    return None if before is None or after is None else (before, after)


def is_number(value: Setting) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
