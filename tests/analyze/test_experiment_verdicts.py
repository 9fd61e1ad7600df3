"""Is each verdict given where the rule says, and nowhere else?"""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diagnose.analyze.optimize.experiment import (
    Outcome,
    Timed,
    decide,
    describe_inequality,
    energy_change,
    judge,
    judge_all,
    memory_change,
)
from diagnose.records.experiments import Comparison, EqualityCheck
from diagnose.records.header import Machine, Reading
from diagnose.records.sequential import fewest_blocks
from diagnose.records.stats import Interval
from tests.support.records.experiments import (
    compare,
    ended,
    equal,
    not_claimed,
    optimize_record,
    side,
    slots_of,
    unequal,
    wrong,
)
from tests.support.records.parts import gpu, gpu_use, machine

CPU = machine(0)


def timed(low: float | None, high: float | None) -> Timed:
    center = 1.0 if low is None or high is None else math.sqrt(low * high)
    return Timed(
        speedup=Interval(center, low, high),
        range=(0.97, 1.04),
        control=Interval(1.0, 0.99, 1.01),
        cross_check=Interval(center, low, high),
        detectable=Reading(0.01),
        p_value=0.001,
        blocks=12,
    )


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (1.011, 1.02, "FASTER"),
        (1.009, 1.04, "INCONCLUSIVE"),
        (0.97, 0.98, "SLOWER"),
        (0.96, 0.995, "INCONCLUSIVE"),
        (0.98, 1.02, "SAME"),
        (1.001, 1.005, "SAME"),  # proven, but too small to count
        (0.95, 1.05, "INCONCLUSIVE"),
        (None, None, "INCONCLUSIVE"),
    ],
)
def test_verdict_from_interval(low: float | None, high: float | None, verdict: str) -> None:
    found, reason = decide(timed(low, high))
    assert found == verdict
    assert bool(reason) == (verdict == "INCONCLUSIVE")


@given(st.floats(0.5, 2), st.floats(1.0001, 1.2))
def test_swapping_the_sides_swaps_the_verdict(center: float, width: float) -> None:
    low, high = center / width, center * width
    opposite = {"FASTER": "SLOWER", "SLOWER": "FASTER"}
    here = decide(timed(low, high))[0]
    there = decide(timed(1 / high, 1 / low))[0]
    assert there == opposite.get(here, here)


@pytest.mark.parametrize(
    ("ratio", "verdict"), [(1.5, "FASTER"), (0.8, "SLOWER"), (1.0, "SAME"), (1.03, "FASTER")]
)
def test_known_ratios_are_found(ratio: float, verdict: str) -> None:
    outcome = judge(compare("apply_prompt", ratio), CPU)
    assert (outcome.verdict, outcome.reason) == (verdict, "")
    assert outcome.timed is not None
    speedup = outcome.timed.speedup
    assert speedup.low is not None
    assert speedup.high is not None
    assert speedup.low <= ratio * 1.001
    assert speedup.high >= ratio * 0.999
    assert speedup.center == pytest.approx(ratio, rel=2e-3)
    assert outcome.timed.cross_check.center == pytest.approx(ratio, rel=2e-3)
    assert outcome.timed.detectable.value is not None
    assert 0 < outcome.timed.detectable.value < 0.01


def test_times_are_compared_per_step() -> None:
    base = slots_of([4.0, 4.2, 3.9, 4.1] * 3, [4.0, 4.2, 3.9, 4.1] * 3, [1.0] * 12)
    after = side("after", [4.0, 4.2, 3.9, 4.1] * 3, steps_per_slot=4)
    outcome = judge(replace(base, after=after), CPU)
    assert outcome.timed is not None
    assert outcome.timed.speedup.center == pytest.approx(4.0)


def test_a_side_that_skips_samples_gains_nothing_by_it() -> None:
    """Ten percent less time for ten percent fewer samples is the same speed."""
    base = compare("loader_drop_last", 1 / 0.9, scope="epoch")
    assert base.after is not None
    assert base.before is not None
    assert base.control is not None
    shorter = replace(
        base,
        before=replace(base.before, samples_per_step=100),
        control=replace(base.control, samples_per_step=100),
        after=replace(base.after, samples_per_step=90),
    )
    outcome = judge(shorter, CPU)
    assert outcome.verdict == "SAME"
    assert any(flag.startswith("PER_SAMPLE") for flag in outcome.flags)
    assert judge(base, CPU).verdict == "FASTER"


@pytest.mark.parametrize("blocks", range(1, 7))
def test_few_blocks_show_their_range_and_stay_undecided(blocks: int) -> None:
    outcome = judge(compare("apply_prompt", 3.0, blocks=blocks), CPU)
    assert outcome.verdict == "INCONCLUSIVE"
    assert f"{blocks} blocks are too few" in outcome.reason
    assert "range from" in outcome.reason


def test_both_windows_of_the_code_as_it_was_count() -> None:
    """Where the same code differs from itself by as much, being faster than one is no proof."""
    quiet, wild = [1.0] * 12, [1.06, 0.94] * 6
    outcome = judge(slots_of(quiet, wild, [1 / 1.04] * 12), CPU)
    assert outcome.verdict == "INCONCLUSIVE"
    assert "neither beyond 1.0 %" in outcome.reason
    assert judge(slots_of(quiet, quiet, [1 / 1.04] * 12), CPU).verdict == "FASTER"


TIMED = compare("apply_prompt", 2.0)
BIASED = slots_of([1.0 + 0.001 * at for at in range(12)], [0.9] * 12, [0.5] * 12)


def with_use(**changes: object) -> Comparison:
    made = compare("apply_prompt", 1.5, watts=(300, 300))
    assert made.after is not None
    use = replace(gpu_use(300), **changes)  # type: ignore[arg-type]
    return replace(made, after=replace(made.after, gpus=(use,)))


def throttled(limit: str, seconds: float | None) -> Comparison:
    """Its slots last 14 * 0.5 / 1.5 = 4.7 s."""
    return with_use(throttle_seconds={limit: Reading(seconds, "" if seconds else "not supported")})


def clocked(lowest: float) -> Comparison:
    return with_use(sm_hertz=Reading(2e9), sm_hertz_lowest=Reading(lowest))


def shared(used_bytes: float, busy: float) -> Machine:
    crowded = replace(gpu(used_before=used_bytes), utilization_before=Reading(busy))
    return replace(machine(), gpus=(crowded,))


@pytest.mark.parametrize(
    ("made", "where", "verdict", "words"),
    [
        # What was not proven equal has no speed, even where somebody timed it.
        (
            replace(TIMED, equality=unequal()),
            CPU,
            "NOT_EQUAL",
            "outputs, loss differ: outputs by up to 3.2, allowed 1e-05; 15 of 16 samples differ",
        ),
        (compare("mixed_precision", 1.8, equality=not_claimed()), CPU, "FASTER", ""),
        (replace(TIMED, equality=None), CPU, "INVALID", "no proof"),
        (replace(TIMED, equality=replace(equal(), checks=())), CPU, "INVALID", "no proof"),
        (replace(TIMED, before=None), CPU, "INVALID", "not every side"),
        (replace(TIMED, control=None), CPU, "INVALID", "not every side"),
        (replace(TIMED, after=None), CPU, "INVALID", "not every side"),
        # An experiment that did not end says why.
        (ended("x", "failed", "no compiler"), CPU, "FAILED", "no compiler"),
        (ended("x", "hung", "no answer"), CPU, "FAILED", "it hung and was stopped: no answer"),
        (ended("x", "skipped", "no compiler"), CPU, "SKIPPED", "no compiler"),
        (ended("x", "invalid", "no compiler"), CPU, "INVALID", "no compiler"),
        # Times without a ratio, and a harness that favours one place.
        (slots_of([1.0] * 8, [1.0] * 8, []), CPU, "INVALID", ""),
        (slots_of([1.0] * 8, [1.0] * 8, [0.0] * 8), CPU, "INVALID", ""),
        (BIASED, CPU, "INVALID", "HARNESS_BIASED"),
        # A GPU that lowered its clock, and limits that are healthy.
        (throttled("thermal slowdown", 0.9), machine(), "INVALID", "slowdown for 19 % of the time"),
        (clocked(1.4e9), machine(), "INVALID", "the SM clock fell 30 %"),
        (throttled("thermal slowdown", 0.01), machine(), "FASTER", ""),
        (throttled("power cap", 4.0), machine(), "FASTER", ""),
        (throttled("thermal slowdown", None), machine(), "FASTER", ""),
        (clocked(1.8e9), machine(), "FASTER", ""),
        # Another user of the GPU; other work on the host alone shows in the control.
        (TIMED, shared(4e6, 0.0), "FASTER", ""),
        (TIMED, shared(2e9, 0.0), "INVALID", "SHARED"),
        (TIMED, shared(4e6, 0.5), "INVALID", "SHARED"),
        (TIMED, machine(0, cpu_busy=0.6), "FASTER", ""),
    ],
)
def test_what_was_disturbed_or_not_proven_has_no_speed(
    made: Comparison, where: Machine, verdict: str, words: str
) -> None:
    outcome = judge(made, where)
    assert outcome.verdict == verdict
    assert words in outcome.reason
    assert (outcome.timed is None) == (verdict != "FASTER")


def test_inequality_without_a_number_is_said_in_words() -> None:
    check = EqualityCheck("loss", 0.0, None, None, 4, False, "the loss is not finite")
    others = [replace(check, name=name, worst=0.5, remark="") for name in ("a", "b")]
    assert describe_inequality([check, *others]) == (
        "loss, a and 1 more differ: shape or finiteness of loss; the loss is not finite"
    )


def test_an_unsteady_warm_up_is_flagged_but_does_not_invalidate() -> None:
    made = compare("apply_prompt", 1.5)
    assert made.after is not None
    clock = replace(made.after.timing, not_steady="the mean still fell")
    outcome = judge(replace(made, after=replace(made.after, timing=clock)), CPU)
    assert outcome.verdict == "FASTER"
    assert outcome.flags == ("NOT_STEADY: after: the mean still fell",)


def test_a_gain_that_the_clock_explains_is_flagged() -> None:
    higher = Reading(1.5 * 2.52e9)
    by_clock = judge(with_use(sm_hertz=higher, sm_hertz_lowest=higher), machine())
    assert any("CLOCK_NOT_CODE" in flag for flag in by_clock.flags)
    assert judge(with_use(), machine()).flags == ()


def test_holm_takes_back_what_a_family_finds_by_chance() -> None:
    alone = optimize_record(compare("apply_prompt", 1.5, blocks=7))
    assert judge_all(alone)[0].verdict == "FASTER"
    same = [compare(f"key{index}", 1.0, blocks=7) for index in range(29)]
    many = judge_all(optimize_record(compare("apply_prompt", 1.5, blocks=7), *same))
    assert many[0].verdict == "INCONCLUSIVE"
    assert "FASTER alone, but not among 30 experiments" in many[0].reason
    assert f"{fewest_blocks(30)} blocks could prove it, 7 were run" in many[0].reason
    assert many[0].family_p is not None
    assert many[0].family_p > 0.05
    more = judge_all(optimize_record(compare("apply_prompt", 1.5, blocks=fewest_blocks(30)), *same))
    assert more[0].verdict == "FASTER"


def test_what_was_not_timed_is_no_member_of_the_family() -> None:
    others = [wrong(f"key{index}") for index in range(50)]
    failed = ended("torch_compile", "failed", "it raised")
    outcomes = judge_all(optimize_record(compare("a", 1.5, blocks=8), *others, failed))
    assert [outcomes[0].verdict, outcomes[1].verdict] == ["FASTER", "NOT_EQUAL"]
    assert outcomes[1].family_p is None


def test_peak_memory_and_energy_are_compared() -> None:
    made = compare("apply_prompt", 2.0, peaks=(9e9, 7e9), watts=(200, 300))
    assert memory_change(made).value == -2e9
    # half the time at one and a half times the power
    assert energy_change(made).value == pytest.approx(-0.25, rel=1e-2)
    bare = compare("apply_prompt", 2.0)
    assert memory_change(bare) == Reading(None, "the host does not count peaks")
    assert energy_change(bare).reason == "this machine has no NVIDIA GPU"
    assert memory_change(wrong("a")).value is None
    assert energy_change(wrong("a")).value is None


def test_the_name_has_the_published_form() -> None:
    assert Outcome(wrong("apply_prompt"), "NOT_EQUAL").name == "apply_prompt as published"
