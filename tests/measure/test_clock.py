from __future__ import annotations

import gc
import itertools
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from diagnose.measure import clock
from diagnose.measure.clock import FULL, QUICK, Effort, Timed, empty_pair_seconds
from diagnose.records.run import Timing
from tests.support.fake_timer import FakeTimer, step_of

EFFORT = replace(FULL, warmup_seconds=1.0, window=4, warmup_limit_seconds=60.0, limit_seconds=60.0)


def measure(*arguments: Any, **options: Any) -> list[Timing]:
    return [track.timing() for track in clock.measure(*arguments, **options)]


def timed(timer: FakeTimer, seconds: float, name: str = "a") -> Timed:
    return Timed(name, step_of(timer, [seconds]))


def test_a_constant_step_is_measured_exactly() -> None:
    timer = FakeTimer()
    (timing,) = measure([timed(timer, 0.125)], EFFORT, timer, seed=0)
    assert timing.steps_per_slot == 5  # half a second and the calibration's margin
    assert timing.slot_seconds == (0.625,) * 10
    assert timing.step_seconds == (0.125,) * 50
    assert timing.step_clock == "device events"
    assert timing.unmet == timing.not_steady == ""
    gaps = [b - a for a, b in itertools.pairwise(timing.slot_starts)]
    assert gaps == [0.625] * 9, "slots follow each other and carry their start"


SHORT = replace(EFFORT, slot_seconds=0.125, fewest_seconds=3.0)


@pytest.mark.parametrize(
    ("seconds", "effort", "least", "slots"),
    [
        pytest.param(2.0, EFFORT, 0.0, (2.0,) * 10, id="a slow step has slots of one step"),
        pytest.param(0.125, SHORT, 0.0, (0.125,) * 24, id="until enough time was spent"),
        pytest.param(0.5, EFFORT, 2.0, (2.5,) * 10, id="energy asks for longer slots"),
    ],
)
def test_slots_are_as_long_and_as_many_as_it_takes(
    seconds: float, effort: Effort, least: float, slots: tuple[float, ...]
) -> None:
    timer = FakeTimer()
    step = timed(timer, seconds)
    (timing,) = measure([step], effort, timer, seed=0, least_slot_seconds=least)
    assert timing.slot_seconds == slots


@pytest.mark.parametrize("variants", [1, 2, 3])
def test_energy_never_leaves_too_few_slots(variants: int) -> None:
    """A counter that moves every 100 ms wants slots of two seconds; a quick run has twelve."""
    timer = FakeTimer()
    steps = [Timed(str(i), lambda: timer.spend(0.01)) for i in range(variants)]
    made = measure(steps, QUICK, timer, seed=0, least_slot_seconds=2.0)
    assert all(len(each.slot_seconds) >= QUICK.fewest_slots for each in made)


def test_a_rule_sees_seconds_per_step_however_many_a_slot_has() -> None:
    timer = FakeTimer()
    seen: list[list[list[float]]] = []

    def after_two_blocks(steps: Sequence[Sequence[float]]) -> Sequence[str]:
        seen.append([list(each) for each in steps])
        return ["more" if len(steps[0]) < 2 else ""] * len(steps)

    slow, fast = timed(timer, 0.5), timed(timer, 0.125, "b")
    made = measure([slow, fast], EFFORT, timer, seed=0, stop=after_two_blocks)
    assert [each.steps_per_slot for each in made] == [1, 5]
    assert seen == [[[0.5], [0.125]], [[0.5] * 2, [0.125] * 2]]


def test_the_timer_may_cost_a_ten_thousandth_of_a_slot() -> None:
    timer = FakeTimer(sync_seconds=2.0**-13)
    assert empty_pair_seconds(timer) == 2.0**-13
    (timing,) = measure([timed(timer, 0.125)], EFFORT, timer, seed=0)
    assert timing.overhead_seconds == 2.0**-13
    # 10 000 overheads are 1.22 s: ten steps fill it, and one more is the margin.
    assert timing.steps_per_slot == 11


def test_noise_runs_into_the_limit_and_the_unmet_condition_is_named() -> None:
    timer = FakeTimer()
    noise = random.Random(1)
    step = Timed("a", lambda: timer.spend(noise.uniform(0.5, 1.5)))
    (timing,) = measure([step], EFFORT, timer, seed=0)
    assert sum(timing.slot_seconds) >= EFFORT.limit_seconds
    assert timing.unmet.startswith("interval ±")
    assert "wanted ±1.0%" in timing.unmet


def test_outliers_stay_in_the_record() -> None:
    timer = FakeTimer()
    slow_at = {3, 4}  # of the slots after ten warm-up steps and one of calibration
    calls = 0

    def step() -> None:
        nonlocal calls
        calls += 1
        timer.spend(8.0 if calls - 11 in slow_at else 0.5)

    (timing,) = measure([Timed("a", step)], EFFORT, timer, seed=0)
    assert timing.slot_seconds.count(8.0) == 2


def test_variants_are_interleaved_in_random_but_repeatable_order() -> None:
    def orders(seed: int) -> list[str]:
        timer = FakeTimer()
        seen: list[str] = []

        def variant(name: str) -> Timed:
            return Timed(name, lambda: timer.spend(0.5), before_slot=lambda: seen.append(name))

        timings = measure([variant("a"), variant("b")], EFFORT, timer, seed=seed)
        assert {len(timing.slot_seconds) for timing in timings} == {10}
        return seen[4:]  # after warm-up and calibration of both

    order = orders(seed=1)
    blocks = [tuple(order[i : i + 2]) for i in range(0, 20, 2)]
    assert {frozenset(block) for block in blocks} == {frozenset("ab")}
    assert len(set(blocks)) == 2, "both orders occur"
    assert order == orders(seed=1)
    assert order != orders(seed=2)


def test_hooks_around_a_slot_are_not_timed() -> None:
    timer = FakeTimer()
    variant = Timed(
        "a",
        lambda: timer.spend(0.5),
        before_slot=lambda: timer.spend(7.0),
        after_slot=lambda: timer.spend(9.0),
    )
    (timing,) = measure([variant], EFFORT, timer, seed=0)
    assert set(timing.slot_seconds) == {0.5}


def test_the_collector_is_off_while_steps_are_timed_and_back_on_after_an_error() -> None:
    timer = FakeTimer()
    states: list[bool] = []
    effort = replace(EFFORT, warmup_seconds=0.0, warmup_steps=1, window=1)

    def step() -> None:
        timer.spend(0.5)
        states.append(gc.isenabled())
        if len(states) == 5:
            raise RuntimeError("step 5")

    assert gc.isenabled()
    with pytest.raises(RuntimeError, match="step 5"):
        measure([Timed("a", step)], effort, timer, seed=0)
    assert states == [False] * 5
    assert gc.isenabled()


def test_what_has_no_single_steps_says_why() -> None:
    timer = FakeTimer(events=False)
    (timing,) = measure([timed(timer, 0.5)], EFFORT, timer, seed=0)
    assert (timing.step_seconds, timing.step_clock) == ((), "none")
    assert timing.step_clock_reason == "this device's events carry no time"
    timer = FakeTimer()
    (timing,) = measure([timed(timer, 2.0**-10)], EFFORT, timer, seed=0)
    assert (timing.steps_per_slot, timing.step_clock) == (564, "none")
    assert "more than 200 steps" in timing.step_clock_reason
    assert len(timing.warmup_seconds) == 300


@pytest.mark.parametrize(
    ("steps", "grows", "reason"),
    [
        ([0.5] * 40, False, ""),
        ([8.0, 4.0, 2.0] + [0.5] * 40, False, ""),  # slow first steps pass with time
        ([0.5 * 1.2**i for i in range(400)], False, "the mean still moves by +107%"),
        ([0.5] * 400, True, "the allocator still grows"),
        ([20.0] * 40, False, "only 3 of 8 warm-up steps fitted"),
    ],
)
def test_warm_up_ends_at_a_steady_state_or_says_why_not(
    steps: list[float], grows: bool, reason: str
) -> None:
    timer = FakeTimer()
    spend = step_of(timer, steps)

    def step() -> None:
        spend()
        timer.held_bytes = (timer.held_bytes or 0) + grows

    (timing,) = measure([Timed("a", step)], EFFORT, timer, seed=0)
    assert timing.not_steady == reason


def test_progress_names_the_variant_and_its_seconds_per_step() -> None:
    timer = FakeTimer()
    seen: list[tuple[str, int, float]] = []
    measure([timed(timer, 0.25)], EFFORT, timer, seed=0, progress=lambda *a: seen.append(a))
    assert seen == [("a", slot, 0.25) for slot in range(1, 11)]


@pytest.mark.parametrize("effort", [FULL, QUICK])
def test_every_synchronisation_is_outside_the_steps(effort: Effort) -> None:
    """Syncing per step would forbid the overlap of host and device that users have."""
    timer = FakeTimer()
    started: list[int] = []
    ended: list[int] = []
    variant = Timed(
        "a",
        lambda: timer.spend(0.01),
        before_slot=lambda: started.append(timer.syncs),
        after_slot=lambda: ended.append(timer.syncs),
    )
    measure([variant], effort, timer, seed=0)
    syncs = [end - start for start, end in zip(started, ended, strict=True)]
    assert set(syncs[1:]) == {2}, "after the warm-up"
