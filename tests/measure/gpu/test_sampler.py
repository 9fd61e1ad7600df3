from __future__ import annotations

import time
from dataclasses import fields
from typing import Any

import pytest

from diagnose.measure.gpu import describe as gpus
from diagnose.measure.gpu import nvml
from diagnose.measure.gpu.energy import Window
from diagnose.measure.gpu.nvml import Failure, Identity
from diagnose.measure.gpu.power import PowerMeter
from diagnose.measure.gpu.sampler import Sampler
from diagnose.records.codec import to_dict
from diagnose.records.header import Reading
from diagnose.records.run import GpuUse
from tests.measure.conftest import Stub
from tests.support.nvml_stub import run_python
from tests.support.nvml_stub.simulated_time import TICK_SECONDS, SimulatedTime
from tests.support.records.parts import machine

UUIDS = [f"0abc000{n}-1111-2222-3333-00000000000{n}" for n in range(2)]
HIGH_THEN_LOW = ((1.5, 2.0), (3.0, 3.25))  # 300 W for half a second, 100 W for a quarter
NO_COUNTER = "field:83=3,nvmlDeviceGetTotalEnergyConsumption=3"
# With the thread and in real time: a driver that hangs would hang the tests' own process.
HUNG = """
import json, time
from diagnose.records.codec import to_dict
from diagnose.measure.gpu import nvml
from diagnose.measure.gpu.sampler import Sampler

identity = nvml.Identity(0, "", "0abc0000-1111-2222-3333-000000000000")
with nvml.open_session(patience_seconds=2) as session:
    begin = time.monotonic()
    with Sampler(session, identity) as sampler:
        time.sleep(2.2)
        use = sampler.use_during([(begin, time.monotonic())])
print(json.dumps(to_dict(use)))
"""


def simulate(number: int = 0) -> Sampler:
    """Polls the stub through four simulated seconds without a thread: every number is known.

    A device draws 100 W in the first half of each second and 300 W in the second half.
    """
    with nvml.open_session() as session:
        simulated = SimulatedTime(session)
        identity = Identity(0, "", UUIDS[number])
        sampler = Sampler(session, identity, Reading(40.0), simulated.clock)
        for _ in range(round(4.5 / TICK_SECONDS)):
            sampler.poll_due()
            simulated.tick()
    return sampler


def use(*windows: Window) -> GpuUse:
    return simulate().use_during(windows or HIGH_THEN_LOW)


def readings_of(use: GpuUse) -> dict[str, Reading]:
    named = {spec.name: getattr(use, spec.name) for spec in fields(use)}
    flat = {name: it for name, it in named.items() if isinstance(it, Reading)}
    return {**flat, **use.throttle_seconds}


@pytest.fixture
def slow_stub(stub: Stub) -> Stub:
    """Its counters move every four ticks."""
    stub(PERIOD_MS=125)
    return stub


def test_the_numbers_are_those_of_the_windows_only(slow_stub: Stub) -> None:
    sampler = simulate()
    seen = sampler.use_during(HIGH_THEN_LOW)
    assert seen.joules_source == "energy counter"
    values = {name: reading.value for name, reading in readings_of(seen).items()}
    joules = 300 * 0.5 + 100 * 0.25
    assert values == pytest.approx(
        {
            "joules": joules,
            "watts": joules / 0.75,
            "idle_watts": 40,
            "power_limit_watts": 350,
            "utilization": 0.4,
            "memory_bytes": 8 << 20,  # without what the driver reserves
            "sm_hertz": 1.41e9,
            "sm_hertz_lowest": 1.41e9,
            "memory_hertz": 1.215e9,
            "celsius_first": 61,
            "celsius_last": 61,
            "pcie_generation": 4,
            "pcie_width": 8,
            "software power cap": 0.75 / 4,
            "sync boost": 0,
            "software thermal slowdown": 0,
            "hardware thermal slowdown": 0,
            "hardware power brake": 0,
        }
    )
    # The stub has no counter for this one, so the current reasons stand in for it.
    assert "samples" in seen.throttle_seconds["hardware thermal slowdown"].reason
    assert sampler.watts_between(1.5, 3.0).value == pytest.approx((150 + 50 + 150) / 1.5)
    assert sampler.energy_period_seconds().value == 0.125
    (power,) = sampler.power_between(1.0, 2.0, origin=0.5)
    assert (power.at_seconds[0], power.at_seconds[-1]) == (0.5, 1.5)
    assert list(power.watts) == [100.0] * 16 + [300.0] * 16 + [100.0]
    # Torch's second GPU is NVML's first, and draws twice as much.
    other = simulate(number=1).use_during(HIGH_THEN_LOW)
    assert other.joules.value == pytest.approx(2 * joules)


def test_without_field_values_the_older_calls_are_used(slow_stub: Stub) -> None:
    slow_stub(FAIL="nvmlDeviceGetFieldValues=13,nvmlDeviceGetCurrentClocksEventReasons=13")
    seen = use()
    assert seen.joules_source == "energy counter"
    assert seen.joules.value == pytest.approx(175)
    capped = seen.throttle_seconds["software power cap"]
    assert capped.value == pytest.approx(0.75)
    assert "samples" in capped.reason


def test_without_an_energy_counter_power_is_integrated(slow_stub: Stub) -> None:
    slow_stub(FAIL=NO_COUNTER)
    sampler = simulate()
    seen = sampler.use_during(HIGH_THEN_LOW)
    assert seen.joules_source == "power samples"
    assert seen.joules.value == pytest.approx(175)
    assert sampler.energy_period_seconds().reason.startswith("unsupported")


def test_a_sensor_of_averages_tells_nothing_of_short_slots(slow_stub: Stub) -> None:
    slow_stub(FAIL=f"{NO_COUNTER},field:186=3")
    short = use()
    assert short.joules.value is None
    assert "averages over 1 s and the slots last 0.25 s" in short.watts.reason
    long = use((1.0, 4.0))
    assert long.joules_source == "power samples (the driver's power usage, 1 s averages)"
    assert long.watts.value == pytest.approx(200)
    # The same call of an older GPU does not average.
    slow_stub(CAPABILITY=80)
    old = use()
    assert old.joules_source == "power samples (the driver's power usage)"
    assert old.joules.value == pytest.approx(175)


def test_what_may_be_the_neighbours_is_in_doubt(slow_stub: Stub) -> None:
    slow_stub(MIG=1)
    seen = use()
    assert seen.joules.value == pytest.approx(175)
    for text in (seen.joules_source, seen.watts.reason, seen.idle_watts.reason):
        assert "MIG is on" in text


def test_zero_watts_are_dropped_and_counted(slow_stub: Stub) -> None:
    slow_stub(ZERO_WATTS=1)
    sampler = simulate()
    seen = sampler.use_during(HIGH_THEN_LOW)
    # Both ends of a window belong to it: 17 ticks of the first, 9 of the second.
    assert seen.dropped_samples == 26
    assert seen.joules.value == pytest.approx(175)
    assert sampler.power_between(1.0, 2.0, origin=0.5) == ()


def test_a_driver_reload_voids_the_energy_only(slow_stub: Stub) -> None:
    slow_stub(RESET_AFTER_MS=1750)
    seen = use()
    assert seen.joules.value is None
    assert "driver was reloaded" in seen.joules.reason
    assert seen.utilization.value == pytest.approx(0.4)
    assert use((2.5, 3.0)).joules.value == pytest.approx(150)


def test_a_failing_sensor_leaves_the_others(slow_stub: Stub) -> None:
    codes = {
        "utilization": ("nvmlDeviceGetUtilizationRates", 3),
        "memory_bytes": ("nvmlDeviceGetMemoryInfo", 4),
        "celsius_last": ("nvmlDeviceGetTemperature", 13),
        "pcie_generation": ("nvmlDeviceGetCurrPcieLinkGeneration", 15),
        "pcie_width": ("nvmlDeviceGetCurrPcieLinkWidth", 17),
        "power_limit_watts": ("nvmlDeviceGetPowerManagementLimit", 999),
    }
    failing = [f"{call}={code}" for call, code in codes.values()]
    slow_stub(FAIL=",".join((*failing, "nvmlDeviceGetMemoryInfo_v2=13")))
    seen = use()
    for name, (call, code) in codes.items():
        assert readings_of(seen)[name].value is None
        assert f"({call}, NVML error {code})" in readings_of(seen)[name].reason
    assert seen.joules.value == pytest.approx(175)
    assert seen.sm_hertz.value == 1.41e9


@pytest.mark.parametrize("code", [15, 999])
def test_a_gpu_that_is_lost_mid_run_says_when(slow_stub: Stub, code: int) -> None:
    slow_stub(FAIL_AFTER=f"*={code}@300")
    seen = readings_of(use((3.5, 4.0)))
    assert seen.pop("idle_watts").value == 40, "which was read before"
    for reading in seen.values():
        assert reading.value is None
        assert reading.reason.startswith(("lost at t=", "unsupported"))
    assert seen["joules"].reason.startswith("lost at t=")


@pytest.mark.parametrize("call", ["nvmlDeviceGetHandleByUUID", "nvmlDeviceGetTemperature"])
def test_a_call_that_hangs_costs_the_samples_and_not_the_run(
    nvml_stub: dict[str, str], call: str
) -> None:
    # The stub sleeps for half a minute; this returns, which is what is tested.
    seen: dict[str, Any] = run_python(HUNG, nvml_stub | {"STUB_NVML_HANG": call})
    flat = {name: it for name, it in seen.items() if isinstance(it, dict) and "value" in it}
    assert all(it["value"] is None for it in (flat | seen["throttle_seconds"]).values())
    assert "not answered" in seen["watts"]["reason"]


@pytest.mark.parametrize(
    ("variables", "watts", "period"),
    [
        # The counter was seen to move from 0.125 s to 2 s: 100 W for 0.875 s, 300 W for a second.
        ({"PERIOD_MS": 125}, (87.5 + 300) / 1.875, 0.125),
        # A slow counter leaves idle power to the samples.
        ({"PERIOD_MS": 2000}, 100, None),
        # MIG slices are not among the devices that are watched, nor is what NVML cannot name.
        ({"PERIOD_MS": 125, "FAIL": "nvmlDeviceGetUUID=4"}, None, None),
    ],
)
def test_idle_power_is_that_of_the_time_before_the_measuring_process(
    stub: Stub,
    monkeypatch: pytest.MonkeyPatch,
    variables: dict[str, object],
    watts: float | None,
    period: float | None,
) -> None:
    def observe(session: Any, seconds: float) -> Any:
        simulated = SimulatedTime(session)
        return watch_for(session, seconds, simulated.clock, simulated.tick)

    watch_for = gpus.observe_before
    monkeypatch.setattr(gpus, "observe_before", observe)
    stub(**variables)
    meter = PowerMeter("salt")
    assert meter.energy_period_seconds == 0
    began = time.monotonic()
    # The stub's time stands still from here on: the thread reads it, and sees nothing move.
    meter.watch([to_dict(Identity(0, "", UUIDS[0], "00000000:02:00.0"))])
    assert meter.energy_period_seconds == (period or 0)
    (gpu,) = meter.describe(machine()).gpus
    assert meter._sampler is not None
    seen = meter._sampler.use_during([(began, began + 1.0)])
    meter.stop()
    assert seen.sm_hertz.value == 1.41e9
    assert gpu.energy_period_seconds.value == period
    if watts is None:
        for reading in (seen.idle_watts, gpu.memory_used_before_bytes, gpu.utilization_before):
            assert reading.value is None
            assert "not watched before" in reading.reason
    else:
        assert seen.idle_watts.value == pytest.approx(watts)
        assert gpu.utilization_before.value == pytest.approx(0.4)


def test_without_nvml_everything_has_the_reason() -> None:
    failure = Failure("unavailable", "unavailable: no driver")
    with Sampler(failure, Identity(0, "a GPU")) as sampler:
        seen = sampler.use_during([(0.0, 1.0)])
        assert sampler.power_between(0.0, 1.0, 0.0) == ()
        assert sampler.energy_period_seconds().reason == "unavailable: no driver"
    assert "not measured" in seen.idle_watts.reason
    assert "no driver" in seen.joules.reason
    assert seen.utilization == Reading(None, "unavailable: no driver")
