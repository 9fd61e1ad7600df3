from __future__ import annotations

from dataclasses import fields, replace

import pytest

from diagnose.measure.gpu.energy import Series
from diagnose.measure.gpu.quantities import CLOCK_LIMITS, PowerKind
from diagnose.measure.gpu.use import (
    BLURRED,
    GpuTrace,
    mean_watts,
    measure_idle_watts,
    measure_watts,
    summarize,
)
from diagnose.records.header import Reading
from diagnose.records.run import GpuUse

IDLE = Reading(40.0)
SLOTS = ((2.0, 4.0), (5.0, 6.0))
AT = tuple(i * 0.125 for i in range(81))  # ten seconds


def steady(value: float) -> Series:
    return Series(AT, (value,) * len(AT))


NO_COUNTER = Series(ended_at=0.1, reason="unsupported: no counter")
AVERAGES = PowerKind("1 s averages", 1.0)
TRACE = GpuTrace(
    series={
        "joules": Series(AT, tuple(1000 + 200 * at for at in AT)),
        "watts": steady(200.0),
        "power_limit_watts": steady(350.0),
        "utilization": Series(AT, tuple(0.25 if at < 4.5 else 0.85 for at in AT)),
        "memory_bytes": Series(AT, tuple(9e9 if at == 4.5 else 4e9 + at for at in AT)),
        "sm_hertz": Series(AT, tuple(1e9 if at == 5.5 else 1.4e9 for at in AT)),
        "memory_hertz": steady(1.2e9),
        "celsius": Series(AT, tuple(50 + at for at in AT)),
        "pcie_generation": Series(AT, tuple(1.0 if at < 2 else 4.0 for at in AT)),
        "pcie_width": steady(16.0),
        "clock_reasons": steady(0x04),
        **{limit.name: Series(AT, tuple(at / 4 for at in AT)) for limit in CLOCK_LIMITS},
    },
    dropped_at=(1.0, 2.5, 5.5),
)


def changed(trace: GpuTrace = TRACE, **series: Series) -> GpuTrace:
    return replace(trace, series={**trace.series, **series})


def test_what_is_read_is_summed_averaged_and_bounded_within_the_slots_only() -> None:
    use = summarize(TRACE, SLOTS, IDLE)
    assert use.joules.value == pytest.approx(600)
    assert use.joules_source == "energy counter"
    assert use.watts.value == pytest.approx(200)
    assert use.idle_watts == IDLE
    assert use.power_limit_watts.value == 350
    # 17 samples of the first slot, 9 of the second.
    assert use.utilization.value == pytest.approx((17 * 0.25 + 9 * 0.85) / 26)
    assert use.memory_bytes.value == 4e9 + 6
    assert (use.sm_hertz.value, use.sm_hertz_lowest.value) == (1.4e9, 1e9)
    assert use.memory_hertz.value == 1.2e9
    assert (use.celsius_first.value, use.celsius_last.value) == (52, 56)
    assert (use.pcie_generation.value, use.pcie_width.value) == (4, 16)
    assert [it.value for it in use.throttle_seconds.values()] == [pytest.approx(0.75)] * 5
    assert use.dropped_samples == 2


def test_the_order_of_the_slots_does_not_matter() -> None:
    assert summarize(TRACE, SLOTS[::-1], IDLE) == summarize(TRACE, SLOTS, IDLE)


def test_idle_power_may_be_an_average_that_reaches_back() -> None:
    trace = changed(replace(TRACE, watts_kind=AVERAGES), joules=NO_COUNTER)
    assert measure_watts(trace, 1.0, 3.0).value is None
    assert measure_idle_watts(trace, 1.0, 3.0).value == pytest.approx(200)
    assert "no counter" in measure_idle_watts(GpuTrace({"joules": NO_COUNTER}), 1.0, 3.0).reason


def test_utilisation_of_slots_below_its_own_sampling_period_is_blurred() -> None:
    assert summarize(TRACE, SLOTS, IDLE).utilization.reason == ""
    use = summarize(TRACE, [(2.0, 4.0), (5.0, 5.75)], IDLE)
    assert use.utilization.value == pytest.approx((17 * 0.25 + 7 * 0.85) / 24)
    assert use.utilization.reason == BLURRED


def test_counter_and_samples_that_disagree_are_flagged() -> None:
    use = summarize(changed(watts=steady(214.0)), SLOTS, IDLE)
    assert use.joules.value == pytest.approx(600)
    assert use.joules_source == "energy counter (power samples disagree by 7%)"
    near = summarize(changed(watts=steady(208.0)), SLOTS, IDLE)
    assert near.joules_source == "energy counter"


def readings(use: GpuUse) -> list[Reading]:
    values = [getattr(use, spec.name) for spec in fields(use) if spec.name != "idle_watts"]
    return [it for it in values if isinstance(it, Reading)] + list(use.throttle_seconds.values())


@pytest.mark.parametrize("windows", [(), ((20.0, 21.0),)], ids=["no slot", "not sampled"])
def test_nothing_seen_is_null_with_a_reason_everywhere(
    windows: tuple[tuple[float, float], ...],
) -> None:
    seen = readings(summarize(TRACE, windows, IDLE))
    assert len(seen) == 12 + len(CLOCK_LIMITS)
    assert all(it.value is None and it.reason for it in seen)


def test_nothing_sampled_at_all_is_null_with_a_reason_everywhere() -> None:
    seen = readings(summarize(GpuTrace(), SLOTS, IDLE))
    assert all(it.value is None and "not sampled" in it.reason for it in seen)


def test_a_slot_of_no_length_has_no_power() -> None:
    assert mean_watts(Reading(0.0), [(1.0, 1.0)]).value is None


@pytest.mark.parametrize(
    ("trace", "begin", "end", "watts"),
    [
        (TRACE, -1.0, 5.0, 200),
        (TRACE, -8.0, 5.0, None),
        (TRACE, 5.0, 12.0, 200),
        (TRACE, 5.0, 17.0, None),
        (changed(joules=NO_COUNTER), -1.0, 5.0, 200),
        (GpuTrace(), 0.0, 5.0, None),
    ],
)
def test_power_of_a_stretch_needs_samples_of_half_of_it(
    trace: GpuTrace, begin: float, end: float, watts: float | None
) -> None:
    assert measure_watts(trace, begin, end).value == (watts and pytest.approx(watts))
