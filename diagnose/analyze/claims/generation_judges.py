"""What do the passes of a record say about a claim on evaluation? One judge per kind of claim."""

from __future__ import annotations

from itertools import combinations

from diagnose.analyze import derive
from diagnose.analyze.claims.generation_arithmetic import CARDS
from diagnose.analyze.claims.judges import (
    ClaimResult,
    Evidence,
    Judge,
    contrary,
    describe,
    not_testable,
    not_timed,
    speeds_up,
)
from diagnose.analyze.claims.series import Range, gains, judge_gain, lies_in
from diagnose.analyze.optimize.coverage import changed_answers, fact_of
from diagnose.analyze.optimize.effects import find
from diagnose.analyze.optimize.experiment import time_ratio
from diagnose.analyze.optimize.ladder import over
from diagnose.analyze.optimize.plans import GUIDE_PRIORITY, PASS, find_base, find_plans, rank
from diagnose.analyze.units import number, percent, scaled, spread
from diagnose.records.experiments import Comparison
from diagnose.records.stats import Interval

# "About twice" still is, if it is off by no more than this.
ABOUT = 0.2
PLAN_C_GAIN = 16.0
# What the guide does last, and calls the most effective.
SEVERAL = GUIDE_PRIORITY[-1]
# "Usually" is at least more often than not.
USUALLY = 0.5
# Below it the device could do more.
FULL_UTILIZATION = 0.99


def faster(key: str, remark: str = "") -> Judge:
    """The claim that a knob makes a pass faster; the remark says what else to know of it."""

    def judge(evidence: Evidence) -> ClaimResult:
        found = speeds_up(key, PASS)(evidence)
        return ClaimResult(found.verdict, found.measured, _join(found.condition, remark))

    return judge


def about(key: str, factor: float) -> Judge:
    return gains(key, *_around(factor), scope=PASS)


def judge_linear(evidence: Evidence) -> ClaimResult:
    """As many times as fast as there are processes?"""
    outcome = find(evidence.outcomes, SEVERAL, PASS)
    if outcome is None or outcome.timed is None:
        return not_timed(outcome, SEVERAL)
    count = fact_of(outcome.comparison, "after_processes")
    if count is None:
        return not_testable("the number of processes was not recorded")
    found = about(SEVERAL, count)(evidence)
    return ClaimResult(found.verdict, f"{found.measured}, {count:g} processes", found.condition)


def shorter_limit(limit: int, factor: float) -> Judge:
    """The claim that a lower limit is so many times as fast, in both ways to stop."""

    def judge(evidence: Evidence) -> ClaimResult:
        told, holds = [], list[bool | None]()
        for key, mode in ((f"fixed_{limit}", "fixed length"), (f"tokens_{limit}", "natural stop")):
            outcome = find(evidence.outcomes, key, PASS)
            ratio = None if outcome is None else time_ratio(outcome.comparison)
            if outcome is None or ratio is None:
                return not_timed(outcome, key)
            first, second = (
                fact_of(outcome.comparison, f"{side}_mean_tokens") for side in ("before", "after")
            )
            tokens = "" if first is None or second is None else f", {first:g} → {second:g} tokens"
            changed = changed_answers(outcome.comparison)
            told.append(f"{mode}: {spread(ratio)}x{tokens}, {changed} answers change")
            holds.append(lies_in(ratio, _around(factor)))
        measured = "; ".join(told)
        if all(holds):
            return ClaimResult("CONFIRMED", measured, "not the same answers: a shorter output")
        if None in holds:
            reason = f"undecided: an interval is partly more than {ABOUT:.0%} off {factor:g}x"
            return ClaimResult("NOT TESTABLE HERE", measured, reason)
        if any(holds):
            condition = "on answers that run to the limit: time goes by the tokens really written"
            return ClaimResult("CONDITIONAL", measured, condition)
        return contrary(evidence, measured)

    return judge


def covers(limit: int, least: float) -> Judge:
    """The claim that more than this share of the answers fits into a limit."""

    def judge(evidence: Evidence) -> ClaimResult:
        share = _fact(evidence, f"tokens_{limit}", "after_coverage_share")
        if share is None:
            return not_testable(f"the lengths of the answers were not recorded with tokens_{limit}")
        measured = f"{percent(share)} of the answers have {limit} tokens or fewer"
        return _on_the_data(share > least, measured)

    return judge


def judge_short_answers(evidence: Evidence) -> ClaimResult:
    share = _fact(evidence, "tokens_16", "within_10_tokens_share")
    if share is None:
        return not_testable("the lengths of the answers were not recorded with tokens_16")
    measured = f"{percent(share)} of the answers have 10 tokens or fewer"
    return _on_the_data(share > USUALLY, measured)


def _on_the_data(holds: bool, measured: str) -> ClaimResult:
    """A claim about the answers of a data set is neither proven nor refuted by another's."""
    here = "it holds for them" if holds else "it does not hold for them"
    condition = "on the data: claimed of VQAv2, and these answers are others"
    return ClaimResult("CONDITIONAL", f"{measured}: {here}", condition)


def judge_base_utilization(evidence: Evidence) -> ClaimResult:
    base = find_base(evidence.outcomes)
    if base is None or base.before is None:
        return not_testable("no evaluation pass was timed")
    seen = derive.utilization(base.before)
    if seen.value is None:
        return not_testable(seen.reason)
    measured = f"a kernel runs for {percent(seen.value)} of the time"
    if seen.value < FULL_UTILIZATION:
        return ClaimResult("CONFIRMED", measured)
    return ClaimResult("REFUTED", measured)


def judge_doubled_memory(evidence: Evidence) -> ClaimResult:
    """Twice the batch, twice the memory?"""
    outcome = find(evidence.outcomes, "batch_double", PASS)
    if outcome is None or outcome.comparison.before is None or outcome.comparison.after is None:
        return not_timed(outcome, "batch_double")
    first, second = outcome.comparison.before.peak_bytes, outcome.comparison.after.peak_bytes
    if not first.value or second.value is None:
        return not_testable(first.reason or second.reason or "no memory was in use")
    times = second.value / first.value
    measured = f"{scaled(first.value, 'B')} → {scaled(second.value, 'B')}, {number(times, 3)}x"
    if times >= 2 * (1 - ABOUT):
        return ClaimResult("CONFIRMED", measured)
    return contrary(evidence, measured)


def plan_gains(key: str, least: float, most: float) -> Judge:
    """The claim about a whole plan."""

    def judge(evidence: Evidence) -> ClaimResult:
        plans = find_plans(evidence.outcomes)
        plan = next((each for each in plans if each.outcome.comparison.key == key), None)
        if plan is None or plan.measured is None:
            return not_timed(find(evidence.outcomes, key, PASS), key)
        found = judge_gain(evidence, plan.sentence, plan.measured, (least, most))
        missing = _left_out(plan.outcome.comparison)
        # Without a part it is another plan, which refutes nothing.
        if missing and found.verdict == "REFUTED":
            return ClaimResult("CONDITIONAL", found.measured, _join(found.condition, missing))
        return ClaimResult(found.verdict, found.measured, _join(found.condition, missing))

    return judge


def judge_plan_c(evidence: Evidence) -> ClaimResult:
    """16x on eight cards; a plan of fewer processes is told, and decides nothing."""
    found = plan_gains("plan_c", *_around(PLAN_C_GAIN))(evidence)
    used = _fact(evidence, "plan_c", "after_processes")
    if used is None or used >= CARDS or not found.measured:
        return found
    condition = f"it needs {CARDS} devices; {used:g} processes were tried"
    return ClaimResult("NOT TESTABLE HERE", found.measured, condition)


def judge_priority(evidence: Evidence) -> ClaimResult:
    """Is what the guide would do first what saves most?"""
    ratios = {each.comparison.key: ratio for each, ratio in rank(evidence.outcomes)}
    measured = [key for key in ratios if key in GUIDE_PRIORITY]
    if len(measured) < len(GUIDE_PRIORITY):
        missing = ", ".join(key for key in GUIDE_PRIORITY if key not in measured)
        return not_testable(f"not timed: {missing}")
    told = "by what they save: " + ", ".join(f"{key} {spread(ratios[key])}x" for key in measured)
    # Among what is done on one card; more cards are said to be more effective than all of it.
    pairs = list(combinations(GUIDE_PRIORITY[:-1], 2))
    if any(_is_below(ratios[first], ratios[second]) for first, second in pairs):
        return contrary(evidence, told)
    open_pairs = [pair for pair in pairs if not _is_below(ratios[pair[1]], ratios[pair[0]])]
    if not open_pairs:
        return ClaimResult("CONFIRMED", told)
    names = ", ".join(f"{first} or {second}" for first, second in open_pairs)
    return ClaimResult("NOT TESTABLE HERE", told, f"undecided: either may save more: {names}")


def judge_most_effective(evidence: Evidence) -> ClaimResult:
    """More devices are said to be the most effective of all."""
    ranked = rank(evidence.outcomes)
    own = next((pair for pair in ranked if pair[0].comparison.key == SEVERAL), None)
    if own is None:
        return not_timed(find(evidence.outcomes, SEVERAL, PASS), SEVERAL)
    others = {each.comparison.key: ratio for each, ratio in ranked if each is not own[0]}
    measured = describe(own[0])
    if not others:
        return ClaimResult("NOT TESTABLE HERE", measured, "no other change was timed")
    others["no change at all"] = Interval(1.0, 1.0, 1.0)
    better = [key for key, ratio in others.items() if _is_below(own[1], ratio)]
    if better:
        condition = f"on the number of devices: more is saved by {', '.join(better)}"
        return ClaimResult("CONDITIONAL", measured, condition)
    close = [key for key, ratio in others.items() if not _is_below(ratio, own[1])]
    if close:
        reason = f"undecided: {', '.join(close)} may save as much"
        return ClaimResult("NOT TESTABLE HERE", measured, reason)
    return ClaimResult("CONFIRMED", f"{measured}; everything else saves less")


def judge_batch_utilization(evidence: Evidence) -> ClaimResult:
    outcome = find(evidence.outcomes, "batch_8", PASS)
    comparison = None if outcome is None else outcome.comparison
    if comparison is None or comparison.before is None or comparison.after is None:
        return not_timed(outcome, "batch_8")
    first, second = derive.utilization(comparison.before), derive.utilization(comparison.after)
    if first.value is None or second.value is None:
        return not_testable(first.reason or second.reason)
    measured = f"{percent(first.value)} → {percent(second.value)}"
    if second.value > first.value:
        return ClaimResult("CONFIRMED", measured)
    return ClaimResult("REFUTED", measured)


def judge_largest_batch(evidence: Evidence) -> ClaimResult:
    """Is the largest also the fastest? 16 against 8, each measured against single samples."""
    ratios = {}
    for size in (8, 16):
        outcome = find(evidence.outcomes, f"batch_{size}", PASS)
        if outcome is None or outcome.timed is None:
            return not_timed(outcome, f"batch_{size}")
        ratios[size] = outcome.timed.speedup
    more = over(ratios[16], ratios[8])
    measured = f"batch 16 is {spread(more)}x as fast as batch 8"
    if more.low is not None and more.low > 1:
        return ClaimResult("CONFIRMED", measured)
    if more.high is not None and more.high < 1:
        return ClaimResult("REFUTED", measured, "it fits, and is slower")
    return ClaimResult("CONDITIONAL", measured, "on the device: beyond a size more gains nothing")


def _around(factor: float) -> Range:
    return factor * (1 - ABOUT), factor * (1 + ABOUT)


def _is_below(first: Interval, second: Interval) -> bool:
    """For sure."""
    return first.high is not None and second.low is not None and first.high < second.low


def _left_out(comparison: Comparison) -> str:
    missing = comparison.facts.get("left_out")
    return f"without {missing}" if missing else ""


def _join(*parts: str) -> str:
    return "; ".join(filter(None, parts))


def _fact(evidence: Evidence, key: str, name: str) -> float | None:
    outcome = find(evidence.outcomes, key, PASS)
    return None if outcome is None else fact_of(outcome.comparison, name)
