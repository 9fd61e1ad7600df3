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
    energy_ratio,
    judge,
    judge_all,
    memory_change,
)
from diagnose.records.experiments import Comparison, EqualityCheck
from diagnose.records.header import Machine, Reading, Status
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


def timed(low: float | None, high: float | None, margin: float = 0.01) -> Timed:
    center = 1.0 if low is None or high is None else math.sqrt(low * high)
    return Timed(
        speedup=Interval(center, low, high),
        range=(0.97, 1.04),
        control=Interval(1.0, 1 / (1 + margin), 1 + margin),
        cross_check=Interval(center, low, high),
        margin=margin,
        detectable=Reading(0.01),
        p_value=0.001,
        blocks=12,
    )


@pytest.mark.parametrize(
    ("low", "high", "margin", "verdict"),
    [
        (1.011, 1.02, 0.01, "FASTER"),
        (1.009, 1.02, 0.01, "INCONCLUSIVE"),
        (0.97, 0.98, 0.01, "SLOWER"),
        (0.98, 0.995, 0.01, "INCONCLUSIVE"),
        (0.995, 1.005, 0.01, "SAME"),
        (1.001, 1.005, 0.01, "SAME"),  # proven, but too small to count
        (0.95, 1.05, 0.01, "INCONCLUSIVE"),
        (0.97, 1.03, 0.05, "SAME"),
        (1.02, 1.03, 0.05, "INCONCLUSIVE"),  # beyond 1 %, yet within what A/A differs by
        (0.97, 0.98, 0.05, "INCONCLUSIVE"),
        (1.06, 1.07, 0.05, "FASTER"),
        (None, None, 0.01, "INCONCLUSIVE"),
    ],
)
def test_verdict_from_interval_and_margin(
    low: float | None, high: float | None, margin: float, verdict: str
) -> None:
    found, reason = decide(timed(low, high, margin))
    assert found == verdict
    assert bool(reason) == (verdict == "INCONCLUSIVE")


@given(st.floats(0.5, 2), st.floats(1.0001, 1.2), st.floats(0.01, 0.1))
def test_swapping_the_sides_swaps_the_verdict(center: float, width: float, margin: float) -> None:
    low, high = center / width, center * width
    opposite = {"FASTER": "SLOWER", "SLOWER": "FASTER"}
    here = decide(timed(low, high, margin))[0]
    there = decide(timed(1 / high, 1 / low, margin))[0]
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


@pytest.mark.parametrize("blocks", range(1, 6))
def test_few_blocks_show_their_range_and_stay_undecided(blocks: int) -> None:
    outcome = judge(compare("apply_prompt", 3.0, blocks=blocks), CPU)
    assert outcome.verdict == "INCONCLUSIVE"
    assert f"{blocks} blocks are too few" in outcome.reason
    assert "range from" in outcome.reason


def test_the_margin_grows_with_what_the_same_code_differs_by() -> None:
    quiet, wild = [1.0] * 12, [1.06, 0.94] * 6
    outcome = judge(slots_of(quiet, wild, [1 / 1.04] * 12), CPU)
    assert outcome.timed is not None
    assert outcome.timed.margin == pytest.approx(1 / 0.94 - 1, abs=1e-3)
    assert outcome.verdict == "INCONCLUSIVE"
    assert "the same code" in outcome.reason
    assert judge(slots_of(quiet, quiet, [1 / 1.04] * 12), CPU).verdict == "FASTER"


def test_unequal_results_have_no_speed() -> None:
    """Even where somebody timed them."""
    outcome = judge(replace(compare("apply_prompt", 3.0), equality=unequal()), CPU)
    assert outcome.verdict == "NOT_EQUAL"
    assert outcome.timed is None
    assert "worst difference 3.2" in outcome.reason
    assert "15 of 16 samples differ" in outcome.reason
    assert "gradients" not in outcome.reason


def test_inequality_without_a_number_is_told_in_words() -> None:
    text = describe_inequality(
        [EqualityCheck("loss", 0.0, None, None, 4, False, "the loss is not finite")]
    )
    assert text == "loss differ: shapes or finiteness differ; the loss is not finite"


def test_results_that_are_meant_to_differ_are_timed() -> None:
    assert judge(compare("mixed_precision", 1.8, equality=not_claimed()), CPU).verdict == "FASTER"


def test_without_proof_there_is_no_verdict() -> None:
    timed_only = replace(compare("apply_prompt", 2.0), equality=None)
    empty = replace(timed_only, equality=replace(equal(), checks=()))
    for each in (timed_only, empty):
        outcome = judge(each, CPU)
        assert (outcome.verdict, outcome.timed) == ("INVALID", None)
        assert "no proof" in outcome.reason


@pytest.mark.parametrize("missing", ["before", "control", "after"])
def test_every_side_must_be_timed(missing: str) -> None:
    outcome = judge(replace(compare("apply_prompt", 2.0), **{missing: None}), CPU)  # type: ignore[arg-type]
    assert outcome.verdict == "INVALID"
    assert "not every side" in outcome.reason


@pytest.mark.parametrize("slots", [[], [0.0] * 8])
def test_times_that_have_no_ratio_are_invalid(slots: list[float]) -> None:
    outcome = judge(slots_of([1.0] * 8, [1.0] * 8, slots), CPU)
    assert outcome.verdict == "INVALID"
    assert outcome.timed is None


@pytest.mark.parametrize(
    ("status", "verdict"),
    [("failed", "FAILED"), ("hung", "FAILED"), ("skipped", "SKIPPED"), ("invalid", "INVALID")],
)
def test_an_experiment_that_did_not_end_says_why(status: Status, verdict: str) -> None:
    outcome = judge(ended("torch_compile", status, "no compiler was found"), CPU)
    assert outcome.verdict == verdict
    assert "no compiler was found" in outcome.reason
    assert ("hung" in outcome.reason) == (status == "hung")


def biased() -> Comparison:
    before = [1.0 + 0.001 * index for index in range(12)]
    return slots_of(before, [0.9 * each for each in before], [0.5 * each for each in before])


def test_a_harness_that_favours_one_place_is_invalid() -> None:
    outcome = judge(biased(), CPU)
    assert outcome.verdict == "INVALID"
    assert outcome.timed is None
    assert "HARNESS_BIASED" in outcome.reason


def test_an_unsteady_warm_up_is_told_but_does_not_invalidate() -> None:
    made = compare("apply_prompt", 1.5)
    assert made.after is not None
    clock = replace(made.after.timing, not_steady="the mean still fell")
    outcome = judge(replace(made, after=replace(made.after, timing=clock)), CPU)
    assert outcome.verdict == "FASTER"
    assert outcome.flags == ("NOT_STEADY: after: the mean still fell",)


def with_use(**changes: object) -> Comparison:
    made = compare("apply_prompt", 1.5, watts=(300, 300))
    assert made.after is not None
    use = replace(gpu_use(300), **changes)  # type: ignore[arg-type]
    return replace(made, after=replace(made.after, gpus=(use,)))


def test_a_throttled_side_is_invalid() -> None:
    slots = 14 * 0.5 / 1.5
    hot = judge(with_use(throttle_seconds={"thermal slowdown": Reading(0.2 * slots)}), machine())
    assert hot.verdict == "INVALID"
    assert "THROTTLED: thermal slowdown for 20 %" in hot.reason
    fallen = judge(with_use(sm_hertz=Reading(2e9), sm_hertz_lowest=Reading(1.4e9)), machine())
    assert "THROTTLED: the SM clock fell 30 %" in fallen.reason


@pytest.mark.parametrize(
    "changes",
    [
        {"throttle_seconds": {"thermal slowdown": Reading(0.01)}},
        {"throttle_seconds": {"power cap": Reading(4.0)}},
        {"throttle_seconds": {"thermal slowdown": Reading(None, "not supported")}},
        {"sm_hertz": Reading(2e9), "sm_hertz_lowest": Reading(1.8e9)},
    ],
)
def test_a_healthy_clock_limit_does_not_invalidate(changes: dict[str, object]) -> None:
    assert judge(with_use(**changes), machine()).verdict == "FASTER"


@pytest.mark.parametrize(
    ("used", "busy", "verdict"),
    [(4e6, 0.0, "FASTER"), (2e9, 0.0, "INVALID"), (4e6, 0.5, "INVALID")],
)
def test_a_gpu_with_another_user_is_invalid(used: float, busy: float, verdict: str) -> None:
    crowded = replace(gpu(used_before=used), utilization_before=Reading(busy))
    where: Machine = replace(machine(), gpus=(crowded,))
    outcome = judge(compare("apply_prompt", 1.5), where)
    assert outcome.verdict == verdict
    assert ("SHARED" in outcome.reason) == (verdict == "INVALID")


def test_other_work_on_the_host_alone_does_not_invalidate() -> None:
    assert judge(compare("apply_prompt", 1.5), machine(0, cpu_busy=0.6)).verdict == "FASTER"


def test_a_gain_that_the_clock_explains_is_told() -> None:
    higher = Reading(1.5 * 2.52e9)
    by_clock = judge(with_use(sm_hertz=higher, sm_hertz_lowest=higher), machine())
    assert any("CLOCK_NOT_CODE" in flag for flag in by_clock.flags)
    assert judge(with_use(), machine()).flags == ()


def test_holm_takes_back_what_a_family_finds_by_chance() -> None:
    alone = optimize_record(compare("apply_prompt", 1.5, blocks=8))
    assert judge_all(alone)[0].verdict == "FASTER"
    same = [compare(f"key{index}", 1.0, blocks=8) for index in range(9)]
    many = judge_all(optimize_record(compare("apply_prompt", 1.5, blocks=8), *same))
    assert many[0].verdict == "INCONCLUSIVE"
    assert "FASTER alone, but not among 10 experiments" in many[0].reason
    assert "9 blocks could prove it, 8 were run" in many[0].reason
    assert many[0].family_p == pytest.approx(10 * 2 / 2**8)
    more = judge_all(optimize_record(compare("apply_prompt", 1.5, blocks=9), *same))
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
    assert energy_ratio(made).value == pytest.approx(0.75, rel=5e-3)
    bare = compare("apply_prompt", 2.0)
    assert memory_change(bare) == Reading(None, "the host does not count peaks")
    assert energy_ratio(bare).reason == "this machine has no NVIDIA GPU"
    assert memory_change(wrong("a")).value is None
    assert energy_ratio(wrong("a")).value is None


def test_the_name_tells_the_published_form() -> None:
    assert Outcome(wrong("apply_prompt"), "NOT_EQUAL").name == "apply_prompt as published"
