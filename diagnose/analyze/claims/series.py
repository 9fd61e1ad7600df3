"""What became of the claims about the small recurrent model? Its guide, held against one timer."""

from __future__ import annotations

from diagnose.analyze import derive
from diagnose.analyze.claims.judges import (
    Claim,
    ClaimResult,
    Evidence,
    Judge,
    contrary,
    describe,
    needs,
    not_testable,
    not_timed,
    speeds_up,
    undecided,
)
from diagnose.analyze.optimize.effects import find
from diagnose.analyze.optimize.experiment import memory_change
from diagnose.analyze.optimize.ladder import climb
from diagnose.analyze.optimize.series_causes import (
    COMPILE_KEYS,
    DENSER,
    ENOUGH_UTILIZATION,
    EPOCH,
    base_epoch,
    compile_facts,
    work_gain,
)
from diagnose.analyze.units import number, percent, scaled, spread
from diagnose.records.run import Measurement
from diagnose.records.stats import Interval

# The guide's tables: (low, high) before, (low, high) after, (low, high) of the printed factor.
Range = tuple[float, float]
UTILIZATION: tuple[Range, Range, Range] = ((20, 40), (70, 90), (2, 3))
RATE: tuple[Range, Range, Range] = ((500, 1000), (2000, 4000), (2, 4))
BATCH_MS: tuple[Range, Range, Range] = ((50, 100), (15, 30), (3, 5))
BATCH_BEFORE, BATCH_AFTER = 128, 256


def gains(key: str, least: float, most: float, remark: str = "", scope: str = EPOCH) -> Judge:
    """The claim that a change gains between `least` and `most` times."""

    def judge(evidence: Evidence) -> ClaimResult:
        outcome = find(evidence.outcomes, key, scope)
        if outcome is None or outcome.timed is None:
            return not_timed(outcome, key)
        measured = describe(outcome) + compile_facts(outcome.comparison)
        if outcome.verdict != "FASTER":
            found = undecided(outcome) or contrary(evidence, measured)
            condition = "; ".join(filter(None, (found.condition, remark)))
            return ClaimResult(found.verdict, measured, condition)
        found = judge_gain(evidence, measured, outcome.timed.speedup, (least, most))
        condition = "; ".join(filter(None, (found.condition, remark)))
        return ClaimResult(found.verdict, measured, condition)

    return judge


def judge_gain(evidence: Evidence, measured: str, gain: Interval, claimed: Range) -> ClaimResult:
    """A range is confirmed by an interval that lies in it, not by one so wide that they meet."""
    inside = lies_in(gain, claimed)
    if inside is None:
        return ClaimResult("NOT TESTABLE HERE", measured, _why_undecided(gain, claimed))
    if inside:
        return ClaimResult("CONFIRMED", measured)
    found = contrary(evidence, measured)
    words = f"the gain is {'less' if gain.center < claimed[0] else 'more'} here"
    return ClaimResult(found.verdict, measured, "; ".join(filter(None, (found.condition, words))))


def lies_in(gain: Interval, claimed: Range) -> bool | None:
    """Whether the gain is in the claimed range; None where its interval allows both."""
    if gain.low is None or gain.high is None:
        return None
    if claimed[0] <= gain.low and gain.high <= claimed[1]:
        return True
    return False if gain.high < claimed[0] or gain.low > claimed[1] else None


def _why_undecided(gain: Interval, claimed: Range) -> str:
    if gain.low is None or gain.high is None:
        return "undecided: too few blocks for an interval"
    return f"undecided: the interval is partly outside {claimed[0]:g}x to {claimed[1]:g}x"


def judge_compile(evidence: Evidence) -> ClaimResult:
    """The better of both modes."""
    results = [gains(key, 1.2, 1.5)(evidence) for key in COMPILE_KEYS]
    order = ("CONFIRMED", "CONDITIONAL", "REFUTED", "NOT TESTABLE HERE")
    best = min(results, key=lambda each: order.index(each.verdict))
    measured = "; ".join(each.measured for each in results if each.measured)
    return ClaimResult(best.verdict, measured, best.condition)


def judge_took_effect(evidence: Evidence) -> ClaimResult:
    tried = [find(evidence.outcomes, key, EPOCH) for key in COMPILE_KEYS]
    seen = [each.comparison for each in tried if each and "took_effect" in each.comparison.facts]
    if not seen:
        reasons = dict.fromkeys(each.reason for each in tried if each is not None and each.reason)
        return not_testable("; ".join(reasons) or "torch.compile was not tried")
    measured = "; ".join(
        f"{each.key}: {'compiled' if each.facts['took_effect'] else 'nothing was compiled'}"
        f"{compile_facts(each)}"
        for each in seen
    )
    condition = "on more than a printed line: it says that compile was called, not what it did"
    return ClaimResult("CONDITIONAL", measured, condition)


def denser(*keys: str) -> Judge:
    """The claim that a larger model gives the device more work per second."""

    def judge(evidence: Evidence) -> ClaimResult:
        told, certain, against = [], False, True
        for key in keys:
            outcome = find(evidence.outcomes, key, EPOCH)
            if outcome is None or (gain := work_gain(outcome.comparison)) is None:
                continue
            sides = (outcome.comparison.before, outcome.comparison.after)
            rates = " → ".join(_rate(side) for side in sides if side is not None)
            told.append(f"{key}: {gain.words}, {rates} samples/s")
            certain = certain or gain.least > DENSER
            against = against and gain.most <= DENSER
        if not told:
            return not_testable(f"the work per second of {' and '.join(keys)} was not measured")
        measured = "; ".join(told)
        if certain:
            return ClaimResult("CONFIRMED", measured, "denser, not faster: it is another model")
        if against:
            return contrary(evidence, measured)
        return ClaimResult("NOT TESTABLE HERE", measured, "undecided: the intervals overlap")

    return judge


def judge_accumulation(evidence: Evidence) -> ClaimResult:
    outcome = find(evidence.outcomes, "accumulate_4", EPOCH)
    if outcome is None or outcome.timed is None:
        return not_timed(outcome, "accumulate_4")
    change = memory_change(outcome.comparison)
    measured = f"{describe(outcome)}; gradients equal those of the large batch"
    if change.value is None:
        return ClaimResult("CONDITIONAL", measured, f"the memory is unknown: {change.reason}")
    measured += f"; peak memory {'+' if change.value > 0 else ''}{scaled(change.value, 'B')}"
    if change.value < 0:
        return ClaimResult("CONFIRMED", measured)
    if evidence.record.header.machine.device == "cpu":
        condition = "on the device: the resident size of a process does not show it"
        return ClaimResult("CONDITIONAL", measured, condition)
    return ClaimResult("REFUTED", measured)


def judge_rate(evidence: Evidence) -> ClaimResult:
    """Samples per second and batch time, before and after, derived from the same slots."""
    rungs = climb(evidence.record, evidence.outcomes)
    base = base_epoch(evidence.record, evidence.outcomes)
    if base is None:
        return not_testable("no epoch was timed")
    measured = f"before: {_derived(evidence, base)}"
    if not rungs:
        return ClaimResult("NOT TESTABLE HERE", measured, "no change was put on top of another")
    last = rungs[-1]
    after = last.outcome.comparison.after
    assert after is not None  # a rung without it has no speed-up
    measured += f"; after: {_rate(after)} samples/s; {spread(last.together)}x together"
    if last.outcome.verdict != "FASTER":
        return undecided(last.outcome) or contrary(evidence, measured)
    if last.together.high is not None and last.together.high >= RATE[2][0]:
        return ClaimResult("CONFIRMED", measured)
    return ClaimResult("CONDITIONAL", measured, "on the device: the gain is less here")


def judge_utilization(evidence: Evidence) -> ClaimResult:
    rungs = climb(evidence.record, evidence.outcomes)
    base = base_epoch(evidence.record, evidence.outcomes)
    after = rungs[-1].outcome.comparison.after if rungs else None
    if base is None or after is None:
        return not_testable("no change was put on top of another")
    first, second = derive.utilization(base), derive.utilization(after)
    if first.value is None or second.value is None:
        return not_testable(first.reason or second.reason)
    measured = f"{percent(first.value)} → {percent(second.value)}"
    if second.value >= ENOUGH_UTILIZATION:
        return ClaimResult("CONFIRMED", measured)
    if second.value > first.value:
        return ClaimResult("CONDITIONAL", measured, "on the device: it rises, but not so far")
    return contrary(evidence, measured)


def contradict(batch: int, times: Range, rates: Range) -> ClaimResult:
    """Batch time and rate are one number told twice; do the two tables agree?"""
    low, high = 1e3 * batch / times[1], 1e3 * batch / times[0]
    measured = (
        f"{batch} samples in {times[0]:g} to {times[1]:g} ms are {low:.0f} to {high:.0f} "
        f"samples/s, printed {rates[0]:g} to {rates[1]:g}"
    )
    if high < rates[0] or low > rates[1]:
        return ClaimResult("REFUTED", measured, "the two tables contradict each other")
    return ClaimResult("CONFIRMED", measured)


def possible_factor(table: tuple[Range, Range, Range], *, shorter_is_better: bool) -> ClaimResult:
    """The factors that the two ranges allow, against the one printed beside them."""
    (low, high), (least, most), printed = table
    bounds = (low / most, high / least) if shorter_is_better else (least / high, most / low)
    measured = (
        f"{low:g} to {high:g} → {least:g} to {most:g} is {number(bounds[0], 3)}x to "
        f"{number(bounds[1], 3)}x, printed {printed[0]:g}x to {printed[1]:g}x"
    )
    if bounds[0] >= printed[0] and bounds[1] <= printed[1]:
        return ClaimResult("CONFIRMED", measured)
    condition = "on which ends are compared: the ranges allow more than the factor says"
    return ClaimResult("CONDITIONAL", measured, condition)


def _settled(result: ClaimResult) -> Judge:
    return lambda evidence: result


def _rate(side: Measurement) -> str:
    rate = derive.samples_per_second(side)
    return "unknown" if rate.value is None else number(rate.value)


def _derived(evidence: Evidence, side: Measurement) -> str:
    rate, told = derive.samples_per_second(side), f"{_rate(side)} samples/s"
    tried = find(evidence.outcomes, "batch_256", EPOCH)
    batch = None if tried is None else tried.comparison.facts.get("before_batch_size")
    if rate.value is None or not isinstance(batch, int):
        return told
    return f"{told}, {number(1e3 * batch / rate.value)} ms per batch of {batch}"


# In the order of the guide. Arithmetic on its printed figures stands before the measurement.
SERIES_CLAIMS: tuple[Claim, ...] = (
    Claim("001-02", "batch 256 instead of 128 is faster", speeds_up("batch_256", EPOCH)),
    Claim("001-06", "TF32 is 1.2 to 1.5 times as fast", gains("tf32", 1.2, 1.5)),
    Claim("001-10", "8 workers and prefetch 4 are faster", speeds_up("workers_8", EPOCH)),
    Claim("001-14", "a hidden size of 128 or 256 is denser", denser("hidden_128", "hidden_256")),
    Claim("001-16", "torch.compile gains 20 to 50 %", judge_compile),
    Claim(
        "001-19",
        "zero_grad(set_to_none=True) gains 5 to 10 %",
        gains("set_to_none", 1.05, 1.10, "it has been the default since PyTorch 2.0"),
    ),
    Claim(
        "001-22",
        "predictions kept on the device make evaluation faster",
        speeds_up("evaluate_on_device", "evaluation"),
    ),
    Claim(
        "001-22",
        "attention kept on the device makes importance faster",
        speeds_up("importance_on_device", "importance"),
    ),
    Claim(
        "001-23",
        "utilisation 20-40 % → 70-90 % is 2-3x (arithmetic)",
        _settled(possible_factor(UTILIZATION, shorter_is_better=False)),
    ),
    Claim("001-23", "utilisation rises above 70 %", judge_utilization),
    Claim(
        "001-24",
        "500-1000 → 2000-4000 samples/s is 2-4x (arithmetic)",
        _settled(possible_factor(RATE, shorter_is_better=False)),
    ),
    Claim("001-24", "all changes together gain 2 to 4 times", judge_rate),
    Claim(
        "001-25",
        "50-100 → 15-30 ms per batch is 3-5x (arithmetic)",
        _settled(possible_factor(BATCH_MS, shorter_is_better=True)),
    ),
    Claim(
        "001-25",
        "50-100 ms per batch before is 500-1000 samples/s (arithmetic)",
        _settled(contradict(BATCH_BEFORE, BATCH_MS[0], RATE[0])),
    ),
    Claim(
        "001-25",
        "15-30 ms per batch after is 2000-4000 samples/s (arithmetic)",
        _settled(contradict(BATCH_AFTER, BATCH_MS[1], RATE[1])),
    ),
    Claim("001-30", "a printed line shows that compile took effect", judge_took_effect),
    Claim("001-31", "batch 512 helps where 256 is not enough", speeds_up("batch_512", EPOCH)),
    Claim("001-33", "sequences of 60 or 90 days are denser", denser("sequence_60", "sequence_90")),
    Claim("001-34", "accumulation over 4 batches saves memory", judge_accumulation),
    Claim(
        "001-38",
        "compile fails on PyTorch before 2.0",
        needs("this suite needs a newer PyTorch than that"),
    ),
)
