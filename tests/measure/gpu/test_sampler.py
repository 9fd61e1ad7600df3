from __future__ import annotations

import threading
from typing import Any

import pytest

from diagnose.measure.gpu.nvml import Failure, Identity, Session
from diagnose.measure.gpu.sampler import Sampler
from tests.support.nvml_stub import run_python

# Polls the stub through four simulated seconds without a thread: every number is known exactly.
# A device draws 100 W in the first half of each second and 300 W in the second half.
SIMULATED = """
import json
from diagnose.records.codec import to_dict
from diagnose.measure.gpu import nvml
from diagnose.measure.gpu.sampler import Sampler
from diagnose.records.header import Reading
from tests.support.nvml_stub.simulated_time import TICK_SECONDS, SimulatedTime

uuids = [f"0abc000{{n}}-1111-2222-3333-00000000000{{n}}" for n in range(2)]
identities = [nvml.Identity(n, "", uuid) for n, uuid in enumerate(uuids)]
with nvml.open_session(patience_seconds=2) as session:
    time = SimulatedTime(session)
    sampler = Sampler(session, identities, [Reading(40.0), Reading(80.0)], time.clock)
    for _ in range(round(4.5 / TICK_SECONDS)):
        sampler.poll_due()
        time.tick()
    print(json.dumps(dict(
        uses=[to_dict(use) for use in sampler.use_during({windows})],
        watts=[to_dict(each) for each in sampler.watts_between(1.5, 3.0)],
        power=[to_dict(each) for each in sampler.power_between(1.0, 2.0, origin=0.5)],
        periods=[to_dict(each) for each in sampler.energy_period_seconds()],
    )))
"""
HIGH_THEN_LOW = [(1.5, 2.0), (3.0, 3.25)]  # 300 W for half a second, 100 W for a quarter
# The same in real time and with the thread; nothing that depends on the time is asserted.
THREADED = """
import json, time
from diagnose.records.codec import to_dict
from diagnose.measure.gpu import nvml
from diagnose.measure.gpu.sampler import Sampler

uuids = [f"0abc000{{n}}-1111-2222-3333-00000000000{{n}}" for n in range(2)]
identities = [nvml.Identity(n, "", uuid) for n, uuid in enumerate(uuids)]
with nvml.open_session(patience_seconds=2) as session:
    begin = time.monotonic()
    with Sampler(session, identities) as sampler:
        while time.monotonic() < begin + 30 and not ({ready}):
            time.sleep(0.02)
        time.sleep({seconds})
        uses = sampler.use_during([(begin, time.monotonic())])
print(json.dumps([to_dict(use) for use in uses]))
"""
SEEN = "all(poll.gauges_read_at > 0 for poll in sampler._polls)"


def simulate(
    environment: dict[str, str], windows: list[tuple[float, float]] | None = None
) -> dict[str, Any]:
    code = SIMULATED.format(windows=windows or HIGH_THEN_LOW)
    answer: dict[str, Any] = run_python(code, environment | {"STUB_NVML_PERIOD_MS": "125"})
    return answer


def sample(
    environment: dict[str, str], ready: str = SEEN, seconds: float = 0.0
) -> list[dict[str, Any]]:
    answer: list[dict[str, Any]] = run_python(
        THREADED.format(ready=ready, seconds=seconds), environment
    )
    return answer


def readings_of(use: dict[str, Any]) -> dict[str, dict[str, Any]]:
    flat = {name: it for name, it in use.items() if isinstance(it, dict) and "value" in it}
    return {**flat, **use["throttle_seconds"]}


@pytest.fixture(scope="module")
def simulated(nvml_stub: dict[str, str]) -> dict[str, Any]:
    return simulate(nvml_stub)


def test_the_joules_are_those_of_the_windows_only(simulated: dict[str, Any]) -> None:
    first, second = simulated["uses"]
    assert first["joules_source"] == "energy counter"
    assert first["joules"]["value"] == pytest.approx(300 * 0.5 + 100 * 0.25)
    assert first["watts"]["value"] == pytest.approx(175 / 0.75)
    # Torch's second GPU is NVML's first, and draws twice as much.
    assert second["joules"]["value"] == pytest.approx(2 * 175)
    assert simulated["watts"][0]["value"] == pytest.approx((150 + 50 + 150) / 1.5)
    assert [use["idle_watts"]["value"] for use in simulated["uses"]] == [40, 80]


def test_the_throttled_seconds_are_those_of_the_windows_only(simulated: dict[str, Any]) -> None:
    throttled = simulated["uses"][0]["throttle_seconds"]
    assert throttled["software power cap"]["value"] == pytest.approx(0.75 / 4)
    assert throttled["software thermal slowdown"]["value"] == 0
    # The stub has no counter for this one, so the current reasons stand in for it.
    assert "samples" in throttled["hardware thermal slowdown"]["reason"]


def test_the_other_sensors_are_read_in_si_units(simulated: dict[str, Any]) -> None:
    use = simulated["uses"][0]
    assert use["utilization"]["value"] == pytest.approx(0.4)
    assert use["memory_bytes"]["value"] == 8 << 20, "without what the driver reserves"
    assert use["sm_hertz"]["value"] == use["sm_hertz_lowest"]["value"] == 1.41e9
    assert use["memory_hertz"]["value"] == 1.215e9
    assert use["celsius_first"]["value"] == use["celsius_last"]["value"] == 61
    assert (use["pcie_generation"]["value"], use["pcie_width"]["value"]) == (4, 8)
    assert use["power_limit_watts"]["value"] == 350


def test_the_period_of_the_counter_is_found(simulated: dict[str, Any]) -> None:
    assert [period["value"] for period in simulated["periods"]] == [0.125, 0.125]


def test_power_is_drawn_from_the_origin_on(simulated: dict[str, Any]) -> None:
    power = simulated["power"]
    assert [trace["gpu"] for trace in power] == [0, 1]
    assert (power[0]["at_seconds"][0], power[0]["at_seconds"][-1]) == (0.5, 1.5)
    expected = [100.0] * 16 + [300.0] * 16 + [100.0]
    assert power[0]["watts"] == expected
    assert power[1]["watts"] == [2 * watts for watts in expected]


def test_without_field_values_the_older_calls_are_used(nvml_stub: dict[str, str]) -> None:
    failing = "nvmlDeviceGetFieldValues=13,nvmlDeviceGetCurrentClocksEventReasons=13"
    use = simulate(nvml_stub | {"STUB_NVML_FAIL": failing})["uses"][0]
    assert use["joules_source"] == "energy counter"
    assert use["joules"]["value"] == pytest.approx(175)
    assert use["throttle_seconds"]["software power cap"]["value"] == pytest.approx(0.75)
    assert "samples" in use["throttle_seconds"]["software power cap"]["reason"]


NO_COUNTER = "field:83=3,nvmlDeviceGetTotalEnergyConsumption=3"


def test_without_an_energy_counter_power_is_integrated(nvml_stub: dict[str, str]) -> None:
    seen = simulate(nvml_stub | {"STUB_NVML_FAIL": NO_COUNTER})
    assert seen["uses"][0]["joules_source"] == "power samples"
    assert seen["uses"][0]["joules"]["value"] == pytest.approx(175)
    assert seen["periods"][0]["value"] is None
    assert seen["periods"][0]["reason"].startswith("unsupported")


def test_a_sensor_of_averages_tells_nothing_of_short_slots(nvml_stub: dict[str, str]) -> None:
    only_usage = {"STUB_NVML_FAIL": f"{NO_COUNTER},field:186=3"}
    short = simulate(nvml_stub | only_usage)["uses"][0]
    assert short["joules"]["value"] is None
    assert "averages over 1 s and the slots last 0.25 s" in short["watts"]["reason"]
    long = simulate(nvml_stub | only_usage, [(1.0, 4.0)])["uses"][0]
    assert long["joules_source"] == "power samples (the driver's power usage, 1 s averages)"
    assert long["watts"]["value"] == pytest.approx(200)


def test_the_same_call_of_an_older_gpu_does_not_average(nvml_stub: dict[str, str]) -> None:
    old = {"STUB_NVML_FAIL": f"{NO_COUNTER},field:186=3", "STUB_NVML_CAPABILITY": "80"}
    use = simulate(nvml_stub | old)["uses"][0]
    assert use["joules_source"] == "power samples (the driver's power usage)"
    assert use["joules"]["value"] == pytest.approx(175)


def test_what_may_be_the_neighbours_is_in_doubt(nvml_stub: dict[str, str]) -> None:
    use = simulate(nvml_stub | {"STUB_NVML_MIG": "1"})["uses"][0]
    assert use["joules"]["value"] == pytest.approx(175)
    for text in (use["joules_source"], use["watts"]["reason"], use["idle_watts"]["reason"]):
        assert "MIG is on" in text


def test_zero_watts_are_dropped_and_counted(nvml_stub: dict[str, str]) -> None:
    seen = simulate(nvml_stub | {"STUB_NVML_ZERO_WATTS": "1"})
    # Both ends of a window belong to it: 17 ticks of the first, 9 of the second.
    assert seen["uses"][0]["dropped_samples"] == 26
    assert seen["uses"][0]["joules"]["value"] == pytest.approx(175)
    assert seen["power"] == []


def test_a_driver_reload_voids_the_energy_only(nvml_stub: dict[str, str]) -> None:
    reload = {"STUB_NVML_RESET_AFTER_MS": "1750"}
    use = simulate(nvml_stub | reload)["uses"][0]
    assert use["joules"]["value"] is None
    assert "driver was reloaded" in use["joules"]["reason"]
    assert use["utilization"]["value"] == pytest.approx(0.4)
    later = simulate(nvml_stub | reload, [(2.5, 3.0)])["uses"][0]
    assert later["joules"]["value"] == pytest.approx(150)


def test_a_thread_samples_every_gpu(nvml_stub: dict[str, str]) -> None:
    for use in sample(nvml_stub):
        assert use["sm_hertz"]["value"] == 1.41e9
        assert use["pcie_width"]["value"] == 8
        assert "not measured" in use["idle_watts"]["reason"]


def test_a_failing_sensor_leaves_the_others(nvml_stub: dict[str, str]) -> None:
    codes = {
        "utilization": ("nvmlDeviceGetUtilizationRates", 3),
        "memory_bytes": ("nvmlDeviceGetMemoryInfo", 4),
        "celsius_last": ("nvmlDeviceGetTemperature", 13),
        "pcie_generation": ("nvmlDeviceGetCurrPcieLinkGeneration", 15),
        "pcie_width": ("nvmlDeviceGetCurrPcieLinkWidth", 17),
        "power_limit_watts": ("nvmlDeviceGetPowerManagementLimit", 999),
    }
    failing = ",".join(f"{call}={code}" for call, code in codes.values())
    failing += ",nvmlDeviceGetMemoryInfo_v2=13"
    use = simulate(nvml_stub | {"STUB_NVML_FAIL": failing})["uses"][0]
    for name, (call, code) in codes.items():
        assert use[name]["value"] is None
        assert f"({call}, NVML error {code})" in use[name]["reason"]
    assert use["joules"]["value"] == pytest.approx(175)
    assert use["sm_hertz"]["value"] == 1.41e9


@pytest.mark.parametrize("code", [15, 999])
def test_a_gpu_that_is_lost_mid_run_says_when(nvml_stub: dict[str, str], code: int) -> None:
    lost = {"STUB_NVML_FAIL_AFTER": f"*={code}@400"}
    use = simulate(nvml_stub | lost, [(3.5, 4.0)])["uses"][0]
    assert use.pop("idle_watts")["value"] == 40, "which was read before"
    assert all(it["value"] is None for it in readings_of(use).values())
    for name in ("joules", "watts", "memory_bytes", "celsius_last", "software power cap"):
        assert readings_of(use)[name]["reason"].startswith("lost at t=")


@pytest.mark.parametrize("call", ["nvmlDeviceGetHandleByUUID", "nvmlDeviceGetTemperature"])
def test_a_call_that_hangs_costs_the_samples_and_not_the_run(
    nvml_stub: dict[str, str], call: str
) -> None:
    # The stub sleeps for half a minute; this returns, which is what is tested.
    for use in sample(nvml_stub | {"STUB_NVML_HANG": call}, ready="True", seconds=2.0):
        assert all(it["value"] is None for it in readings_of(use).values())
        assert "not answered" in use["watts"]["reason"]


IDLE = """
import json
from diagnose.records.codec import to_dict
from diagnose.measure.gpu import describe as gpus, nvml, power
from tests.support.nvml_stub.simulated_time import SimulatedTime
from tests.support.records.parts import machine

uuid = "0abc0000-1111-2222-3333-000000000000"
identity = to_dict(nvml.Identity(0, "", uuid, "00000000:02:00.0"))


def observe(session, seconds):
    time = SimulatedTime(session)
    return watch_for(session, seconds, time.clock, time.tick)


watch_for, gpus.observe_before = gpus.observe_before, observe
meter = power.PowerMeter("salt")
before = meter.energy_period_seconds
meter.watch([identity])
use, = meter._sampler.use_during([(0.0, 1.0)])
periods = [before, meter.energy_period_seconds]
described = meter.describe(machine())
meter.stop()
print(json.dumps(dict(use=to_dict(use), periods=periods, gpu=to_dict(described.gpus[0]))))
"""


def test_idle_power_is_that_of_the_time_before_the_measuring_process(
    nvml_stub: dict[str, str],
) -> None:
    seen = run_python(IDLE, nvml_stub | {"STUB_NVML_PERIOD_MS": "125"})
    # The counter was seen to move from 0.125 s to 2 s: 100 W for 0.875 s, 300 W for a second.
    assert seen["use"]["idle_watts"]["value"] == pytest.approx((87.5 + 300) / 1.875)
    # So was its period: the stub's time stands still for the sampler.
    assert seen["periods"] == [0, 0.125]
    assert seen["gpu"]["energy_period_seconds"]["value"] == 0.125
    assert seen["gpu"]["utilization_before"]["value"] == pytest.approx(0.4)


def test_a_slow_counter_leaves_idle_power_to_the_samples(nvml_stub: dict[str, str]) -> None:
    seen = run_python(IDLE, nvml_stub | {"STUB_NVML_PERIOD_MS": "2000"})
    assert seen["use"]["idle_watts"]["value"] == pytest.approx(100)


def test_a_device_that_was_not_watched_has_no_idle_power(nvml_stub: dict[str, str]) -> None:
    # MIG slices are not among the devices that are watched, and neither is what NVML cannot name.
    unnamed = {"STUB_NVML_FAIL": "nvmlDeviceGetUUID=4"}
    seen = run_python(IDLE, nvml_stub | unnamed)
    for reading in (
        seen["use"]["idle_watts"],
        seen["gpu"]["memory_used_before_bytes"],
        seen["gpu"]["utilization_before"],
    ):
        assert reading["value"] is None
        assert "not watched before" in reading["reason"]


def test_without_nvml_every_gpu_has_the_reason() -> None:
    failure = Failure("unavailable", "unavailable: no driver")
    with Sampler(failure, [Identity(0, "a GPU")]) as sampler:
        (use,) = sampler.use_during([(0.0, 1.0)])
        assert sampler.power_between(0.0, 1.0, 0.0) == ()
        (period,) = sampler.energy_period_seconds()
    assert use.joules.value is None
    assert "no driver" in use.joules.reason
    assert use.utilization.reason == "unavailable: no driver"
    assert period.reason == "unavailable: no driver"


def test_without_gpus_there_is_nothing_to_tell() -> None:
    with Sampler(Session(None), []) as sampler:
        assert sampler.use_during([(0.0, 1.0)]) == ()
        assert sampler.watts_between(0.0, 1.0) == ()
    assert "nvml-sampler" not in {thread.name for thread in threading.enumerate()}
