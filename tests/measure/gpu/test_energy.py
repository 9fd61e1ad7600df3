from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diagnose.measure.gpu.energy import (
    NOT_COVERED,
    RELOADED,
    Series,
    count_growth,
    count_joules,
    count_seconds_with,
    find_period,
    integrate_watts,
    thin_out,
)


def sample(function: Callable[[float], float], seconds: float, every: float) -> Series:
    at = tuple(i * every for i in range(round(seconds / every) + 1))
    return Series(at, tuple(function(moment) for moment in at))


def latch(function: Callable[[float], float], period: float) -> Callable[[float], float]:
    """A sensor that shows the last whole period's value."""
    return lambda at: function(period * int(at / period + 1e-9))


def wave_joules(at: float) -> float:
    """100 W and 300 W, half a second each."""
    whole, rest = divmod(at, 1.0)
    return 200 * whole + (100 * rest if rest < 0.5 else 50 + 300 * (rest - 0.5))


def wave_watts(at: float) -> float:
    return 300.0 if (at + 1e-9) % 1.0 >= 0.5 else 100.0


def test_windows_shorter_than_the_counters_period_are_called_smoothed() -> None:
    counter = sample(latch(lambda at: 100 * at, 0.5), 12, 0.125)
    reading = count_joules(counter, [(3.1, 3.2)])
    assert reading.value == pytest.approx(10)
    assert "smoothed" in reading.reason


@given(cut=st.floats(1.2, 6.8))
def test_two_halves_of_a_window_hold_what_the_whole_does(cut: float) -> None:
    counter = sample(latch(wave_joules, 0.125), 8, 0.0625)
    whole = count_joules(counter, [(1.0, 7.0)]).value
    assert count_joules(counter, [(1.0, cut), (cut, 7.0)]).value == pytest.approx(whole)


def test_windows_beyond_the_samples_have_no_energy() -> None:
    counter = sample(latch(lambda at: 100 * at, 0.125), 4, 0.0625)
    for window in ((-1.0, 2.0), (3.0, 5.0), (7.0, 8.0)):
        assert count_joules(counter, [window]).reason == NOT_COVERED
        power = sample(wave_watts, 4, 0.0625)
        assert integrate_watts(power, [window]).reason == NOT_COVERED


def test_one_sample_is_not_enough() -> None:
    one = Series((1.0,), (100.0,))
    assert count_joules(one, [(0.5, 1.5)]).value is None
    assert integrate_watts(one, [(0.5, 1.5)]).value is None
    assert find_period(one).value is None


def test_a_window_that_begins_in_a_silence_has_no_energy_but_one_around_it_has() -> None:
    whole = sample(latch(lambda at: 100 * at, 0.125), 20, 0.0625)
    kept = [i for i, at in enumerate(whole.at) if not 6 < at < 9]
    counter = Series([whole.at[i] for i in kept], [whole.values[i] for i in kept])
    assert count_joules(counter, [(7.0, 12.0)]).value is None
    assert count_joules(counter, [(5.0, 12.0)]).value == pytest.approx(700)


def test_why_a_counter_ended_is_told() -> None:
    full = sample(latch(lambda at: 100 * at, 0.125), 4, 0.0625)
    lost = Series(full.at, full.values, ended_at=4.05, reason="lost at t=4.1 s: off the bus")
    assert count_joules(lost, [(3.0, 5.0)]).reason == "lost at t=4.1 s: off the bus"
    assert count_joules(lost, [(1.0, 3.0)]).value == pytest.approx(200)


def average_of_last_second(at: float) -> float:
    return wave_joules(at) - wave_joules(at - 1)


def test_averages_of_the_slot_before_are_left_out() -> None:
    # 100 W until t=4 and 400 W from then on, as a sensor shows it that averages over a second.
    power = sample(lambda at: 100 + 300 * min(1.0, max(0.0, at - 4)), 12, 0.0625)
    assert integrate_watts(power, [(4.0, 8.0)], 1.0).value == pytest.approx(1600)
    assert integrate_watts(power, [(0.0, 4.0), (5.0, 8.0)], 1.0).value == pytest.approx(1600)
    assert integrate_watts(power, [(4.0, 8.0)]).value == pytest.approx(1600 - 150, abs=10)


def test_averages_tell_nothing_of_windows_that_are_hardly_longer() -> None:
    power = sample(average_of_last_second, 12, 0.0625)
    short = integrate_watts(power, [(2.0, 6.0), (7.0, 9.5)], 1.0)
    assert short.value is None
    assert "averages over 1 s and the slots last 2.5 s" in short.reason
    assert integrate_watts(power, [(2.0, 5.0)], 1.0).value == pytest.approx(600)
    assert integrate_watts(power, [(9.5, 13.0)], 1.0).reason == NOT_COVERED
    assert integrate_watts(power, [], 1.0).value is None


def test_power_that_was_not_read_for_a_while_gives_no_energy() -> None:
    power = Series((0.0, 0.1, 0.2, 0.3, 2.0, 2.1), (100.0,) * 6)
    assert integrate_watts(power, [(0.05, 2.05)]).value is None
    assert integrate_watts(power, [(0.05, 0.25)]).value == pytest.approx(20)


@given(period=st.sampled_from([0.05, 0.1, 0.125, 0.5]))
def test_the_period_is_the_median_gap(period: float) -> None:
    counter = sample(latch(lambda at: 100 * at, period), 12, 0.01)
    assert find_period(counter).value == pytest.approx(period, abs=0.011)


def test_single_early_and_late_readings_do_not_move_the_period() -> None:
    gaps = [0.1] * 10 + [0.001, 0.002, 3.0]
    at = [sum(gaps[:i]) for i in range(len(gaps) + 1)]
    counter = Series([-1.0, *at], [float(i) for i in range(len(at) + 1)])
    assert find_period(counter).value == pytest.approx(0.1)


def test_ten_gaps_are_needed_for_a_period() -> None:
    assert find_period(Series(range(12), [float(i) for i in range(12)])).value == 1.0
    assert find_period(Series(range(11), [float(i) for i in range(11)])).value is None


def test_growth_of_a_counter_in_windows() -> None:
    counter = Series((0.0, 1.0, 2.0, 3.0), (5.0, 5.0, 7.0, 7.0))
    assert count_growth(counter, [(0.0, 0.5), (1.5, 3.0)]).value == pytest.approx(1.0)
    assert count_growth(counter, [(0.0, 1.0)]).value == 0.0
    assert count_growth(counter, [(0.0, 4.0)]).value is None
    assert count_growth(Series((0.0, 1.0), (5.0, 1.0)), [(0.2, 0.8)]).reason == RELOADED


def test_a_reason_counts_only_if_seen_twice_in_a_row() -> None:
    masks = Series((0.0, 1.0, 2.0, 3.0, 4.0), (4.0, 4.0, 0.0, 6.0, 2.0))
    assert count_seconds_with(masks, 4, [(0.25, 4.0)]).value == pytest.approx(0.75)
    assert count_seconds_with(masks, 2, [(0.0, 4.0)]).value == pytest.approx(1.0)
    assert count_seconds_with(masks, 8, [(0.0, 4.0)]).value == 0.0


def test_thinning_keeps_the_mean_and_the_limit() -> None:
    power = sample(wave_watts, 100, 0.01)
    thin = thin_out(power, 10.0, 89.995, 600)
    assert len(thin.at) == len(thin.values) == 600
    assert sum(thin.values) / 600 == pytest.approx(200, rel=0.01)
    assert list(thin.at) == sorted(thin.at)
    assert thin.at[0] >= 10.0
    few = thin_out(power, 1.0, 1.05, 600)
    assert len(few.at) == 6
