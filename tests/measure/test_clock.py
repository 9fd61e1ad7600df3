from __future__ import annotations

import gc
import random
from collections.abc import Callable, Sequence
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


def test_slots_are_contiguous_in_time_and_carry_their_start() -> None:
    timer = FakeTimer()
    (timing,) = measure([timed(timer, 0.5)], EFFORT, timer, seed=0)
    gaps = [b - a for a, b in zip(timing.slot_starts, timing.slot_starts[1:], strict=False)]
    assert gaps == [0.5] * 9


def test_a_slow_step_gets_slots_of_one_step() -> None:
    timer = FakeTimer()
    (timing,) = measure([timed(timer, 2.0)], EFFORT, timer, seed=0)
    assert timing.steps_per_slot == 1
    assert timing.slot_seconds == (2.0,) * 10


def test_short_slots_go_on_until_enough_time_was_spent() -> None:
    timer = FakeTimer()
    effort = replace(EFFORT, slot_seconds=0.125, fewest_seconds=3.0)
    (timing,) = measure([timed(timer, 0.125)], effort, timer, seed=0)
    assert len(timing.slot_seconds) == 24


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


def test_energy_asks_for_longer_slots() -> None:
    timer = FakeTimer()
    (timing,) = measure([timed(timer, 0.5)], EFFORT, timer, seed=0, least_slot_seconds=2.0)
    assert timing.slot_seconds == (2.5,) * 10


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


def test_a_device_without_event_times_says_so() -> None:
    timer = FakeTimer(events=False)
    (timing,) = measure([timed(timer, 0.5)], EFFORT, timer, seed=0)
    assert timing.step_seconds == ()
    assert timing.step_clock == "none"
    assert timing.step_clock_reason == "this device's events carry no time"


def test_micro_benchmarks_are_timed_as_a_whole() -> None:
    timer = FakeTimer()
    (timing,) = measure([timed(timer, 2.0**-10)], EFFORT, timer, seed=0)
    assert timing.steps_per_slot == 564
    assert timing.step_clock == "none"
    assert "more than 200 steps" in timing.step_clock_reason
    assert len(timing.warmup_seconds) == 300


@pytest.mark.parametrize(
    ("steps", "reason"),
    [
        ([0.5] * 40, ""),
        ([8.0, 4.0, 2.0] + [0.5] * 40, ""),  # slow first steps pass with time
        ([0.5 * 1.2**i for i in range(400)], "the mean still moves by +107%"),
    ],
)
def test_warm_up_ends_at_a_steady_state_or_says_why_not(steps: list[float], reason: str) -> None:
    timer = FakeTimer()
    (timing,) = measure([Timed("a", step_of(timer, steps))], EFFORT, timer, seed=0)
    assert timing.not_steady == reason


def test_a_growing_allocator_is_not_steady() -> None:
    timer = FakeTimer()
    timer.held_bytes = 0

    def step() -> None:
        timer.spend(0.5)
        timer.held_bytes = (timer.held_bytes or 0) + 1

    (timing,) = measure([Timed("a", step)], EFFORT, timer, seed=0)
    assert timing.not_steady == "the allocator still grows"


def test_too_slow_for_two_windows_is_not_steady() -> None:
    timer = FakeTimer()
    (timing,) = measure([timed(timer, 20.0)], EFFORT, timer, seed=0)
    assert timing.not_steady == "only 3 of 8 warm-up steps fitted"


def test_progress_names_the_variant_and_its_pace() -> None:
    timer = FakeTimer()
    seen: list[tuple[str, int, float]] = []
    measure([timed(timer, 0.25)], EFFORT, timer, seed=0, progress=lambda *a: seen.append(a))
    assert seen == [("a", slot, 0.25) for slot in range(1, 11)]


@pytest.mark.parametrize("effort", [FULL, QUICK])
def test_every_synchronisation_is_outside_the_steps(effort: Effort) -> None:
    """Syncing per step would forbid the overlap of host and device that users have."""
    timer = FakeTimer()
    syncs_in_slots: list[int] = []

    def variant() -> tuple[Callable[[], None], Callable[[], None]]:
        started = 0

        def before() -> None:
            nonlocal started
            started = timer.syncs

        return before, lambda: syncs_in_slots.append(timer.syncs - started)

    before, after = variant()
    measure([Timed("a", lambda: timer.spend(0.01), before, after)], effort, timer, seed=0)
    assert set(syncs_in_slots[1:]) == {2}
