from __future__ import annotations

import threading
from typing import Any

import pytest

from diagnose.measure.nvml import Failure, Identity, Session
from diagnose.measure.sampler import Sampler
from tests.nvml_stub import run_python

# Samples the stub until `ready` holds, joins what was seen, and prints the record.
SAMPLE = """
import json, time
from diagnose.codec import to_dict
from diagnose.measure import nvml
from diagnose.measure.sampler import Sampler

uuids = [f"0abc000{{n}}-1111-2222-3333-00000000000{{n}}" for n in range(2)]
identities = [nvml.Identity(n, "", uuid) for n, uuid in enumerate(uuids)]
with nvml.open_session(patience_seconds=2) as session:
    sampler = Sampler(session, identities)
    with sampler:
        give_up = time.monotonic() + 30
        while time.monotonic() < give_up and not ({ready}):
            time.sleep(0.02)
        origin = time.monotonic()
        time.sleep(0.5)
        begin = time.monotonic()
        sampler.mark_idle(origin, begin)
        time.sleep({seconds})
        windows = [(begin, time.monotonic())]
        uses = sampler.use_during(windows)
        trace = sampler.power_between(origin, windows[0][1], origin)
        periods = sampler.energy_period_seconds()
print(json.dumps(dict(
    uses=[to_dict(use) for use in uses],
    power=[to_dict(each) for each in trace],
    periods=[to_dict(each) for each in periods],
)))
"""
DETECTED = "all(it.value for it in sampler.energy_period_seconds())"


def sample(
    environment: dict[str, str], ready: str = DETECTED, seconds: float = 1.0
) -> dict[str, Any]:
    answer: dict[str, Any] = run_python(SAMPLE.format(ready=ready, seconds=seconds), environment)
    return answer


def readings_of(use: dict[str, Any]) -> dict[str, dict[str, Any]]:
    flat = {name: it for name, it in use.items() if isinstance(it, dict) and "value" in it}
    return {**flat, **use["throttle_seconds"]}


@pytest.fixture(scope="module")
def normal(nvml_stub: dict[str, str]) -> dict[str, Any]:
    return sample(nvml_stub)


def test_a_gpu_is_sampled_from_all_its_sensors(normal: dict[str, Any]) -> None:
    use = normal["uses"][0]
    assert use["joules_source"].startswith("energy counter")
    # The wave runs between these, and the second GPU draws twice as much.
    assert 100 <= use["watts"]["value"] <= 300
    assert 200 <= normal["uses"][1]["watts"]["value"] <= 600
    assert 100 <= use["idle_watts"]["value"] <= 300
    assert use["utilization"]["value"] == pytest.approx(0.4)
    assert use["memory_bytes"]["value"] == 512 << 20
    assert use["sm_hertz"]["value"] == use["sm_hertz_lowest"]["value"] == 1.41e9
    assert use["memory_hertz"]["value"] == 1.215e9
    assert use["celsius_first"]["value"] == use["celsius_last"]["value"] == 61
    assert (use["pcie_generation"]["value"], use["pcie_width"]["value"]) == (4, 8)
    assert use["power_limit_watts"]["value"] == 350
    throttled = use["throttle_seconds"]
    seconds = use["joules"]["value"] / use["watts"]["value"]
    assert throttled["software power cap"]["value"] == pytest.approx(seconds / 4, rel=0.05)
    assert throttled["software thermal slowdown"]["value"] == 0
    # The stub has no counter for this one, so the current reasons stand in for it.
    assert "samples" in throttled["hardware thermal slowdown"]["reason"]


def test_the_period_of_the_counter_is_found(normal: dict[str, Any]) -> None:
    for period in normal["periods"]:
        assert period["value"] == pytest.approx(0.1, rel=0.2)


def test_power_is_drawn_from_the_origin_on(normal: dict[str, Any]) -> None:
    power = normal["power"]
    assert [trace["gpu"] for trace in power] == [0, 1]
    assert set(power[0]["watts"]) <= {100.0, 300.0}
    assert set(power[1]["watts"]) <= {200.0, 600.0}
    assert power[0]["at_seconds"][0] >= 0
    assert len(power[0]["at_seconds"]) == len(power[0]["watts"]) > 1


def test_without_field_values_the_older_calls_are_used(nvml_stub: dict[str, str]) -> None:
    failing = "nvmlDeviceGetFieldValues=13,nvmlDeviceGetCurrentClocksEventReasons=13"
    use = sample(nvml_stub | {"STUB_NVML_FAIL": failing})["uses"][0]
    assert use["joules_source"] == "energy counter"
    assert 100 <= use["watts"]["value"] <= 300
    assert use["throttle_seconds"]["software power cap"]["value"] > 0
    assert "samples" in use["throttle_seconds"]["software power cap"]["reason"]


def test_without_an_energy_counter_power_is_integrated(nvml_stub: dict[str, str]) -> None:
    failing = "field:83=3,nvmlDeviceGetTotalEnergyConsumption=3"
    seen = sample(nvml_stub | {"STUB_NVML_FAIL": failing}, ready="True")
    use = seen["uses"][0]
    assert use["joules_source"] == "power samples"
    assert 100 <= use["watts"]["value"] <= 300
    assert seen["periods"][0]["value"] is None
    assert seen["periods"][0]["reason"].startswith("unsupported")


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
    use = sample(nvml_stub | {"STUB_NVML_FAIL": failing}, seconds=0.5)["uses"][0]
    for name, (call, code) in codes.items():
        assert use[name]["value"] is None
        assert f"({call}, NVML error {code})" in use[name]["reason"]
    assert use["joules"]["value"] > 0
    assert use["sm_hertz"]["value"] == 1.41e9


@pytest.mark.parametrize("code", [15, 999])
def test_a_gpu_that_is_lost_mid_run_says_when(nvml_stub: dict[str, str], code: int) -> None:
    gone = "all(poll.joules.ended and poll.watts.ended for poll in sampler._polls)"
    lost = {"STUB_NVML_FAIL_AFTER": f"*={code}@400"}
    seen = sample(nvml_stub | lost, ready=gone)
    assert all(it["value"] is None for it in readings_of(seen["uses"][0]).values())
    for name in ("joules", "watts", "memory_bytes", "celsius_last", "software power cap"):
        assert readings_of(seen["uses"][0])[name]["reason"].startswith("lost at t=")


def test_zero_watts_are_dropped_and_counted(nvml_stub: dict[str, str]) -> None:
    seen = sample(nvml_stub | {"STUB_NVML_ZERO_WATTS": "1"})
    assert seen["uses"][0]["dropped_samples"] > 0
    assert seen["uses"][0]["joules"]["value"] > 0
    assert seen["power"] == []


def test_a_driver_reload_voids_the_energy_only(nvml_stub: dict[str, str]) -> None:
    restarted = (
        "all(min(poll.joules.series().values, default=1e9) < 5000 for poll in sampler._polls)"
    )
    code = SAMPLE.replace("[(begin, time.monotonic())]", "[(started, time.monotonic())]").replace(
        "        give_up =",
        "        time.sleep(0.5); started = time.monotonic()\n        give_up =",
    )
    environment = nvml_stub | {"STUB_NVML_RESET_AFTER_MS": "2500"}
    use = run_python(code.format(ready=restarted, seconds=0.2), environment)["uses"][0]
    assert use["joules"]["value"] is None
    assert "driver was reloaded" in use["joules"]["reason"]
    assert use["utilization"]["value"] == pytest.approx(0.4)


@pytest.mark.parametrize("call", ["nvmlDeviceGetHandleByUUID", "nvmlDeviceGetTemperature"])
def test_a_call_that_hangs_costs_the_samples_and_not_the_run(
    nvml_stub: dict[str, str], call: str
) -> None:
    # The stub sleeps for half a minute; this returns, which is what is tested.
    seen = sample(nvml_stub | {"STUB_NVML_HANG": call}, ready="True", seconds=2.0)
    for use in seen["uses"]:
        assert all(it["value"] is None for it in readings_of(use).values())
        assert "not answered" in use["watts"]["reason"]


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
