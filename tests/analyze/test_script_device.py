"""Does the device's own time bound every promise, and name what only it can show?"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from diagnose.analyze.script.rules import diagnose
from diagnose.records.diagnosis import Diagnosis
from diagnose.records.script import AGAIN, Activity, Bound, DeviceLine, ScriptRecord, Site
from tests.support.records.script import LINE, STEP, blocks, change, record, suspect

MANY = {"phase": "forward", "launches": 400, "trips": 200, "seconds": 0.03}
LAYER = Site("model.py", 5, "forward", "self.layer(x)")


def active(busy: float, **changes: Any) -> Activity:
    """Of a step of 100 ms; nothing is known of what could come back."""
    plain = Activity(
        steps=5,
        seconds=0.15,
        busy=busy,
        idle={"launching": 0.15 - busy},
        kernels=100.0,
        kernel_seconds=busy,
        exposed_copy=0.0,
        exposed_communication=0.0,
        tensor_core_share=0.0,
        queue_length=3.0,
        bounds=(),
        lines=(DeviceLine(LAYER, 0.4 * busy, 0.5 * busy, 90.0, 0.9e9),),
    )
    return replace(plain, **changes)


def on_device(busy: float, **changes: Any) -> ScriptRecord:
    activity = {
        name: changes.pop(name) for name in tuple(changes) if name in Activity.__dataclass_fields__
    }
    return record(device=active(busy, **activity), **changes)


def gains(diagnosis: Diagnosis) -> dict[str, float]:
    return {each.cause: round(each.gain_ms, 1) for each in diagnosis.findings}


@pytest.mark.parametrize("tried", [True, False])
def test_a_busy_device_hides_what_the_host_does(tried: bool) -> None:
    slow = {"changes": (change("input", site=None),), "windows": blocks(removed=0.06)}
    loader = suspect(key="input", phase="input", seconds=0.04)
    told = diagnose(on_device(0.095, suspects=(loader,), **(slow if tried else {})))
    assert gains(told) == {"compute": 0.0}
    (excluded,) = (each for each in told.excluded if each.cause == "input")
    assert "the device is busy for 95 % of a step" in excluded.evidence
    # The same on a device that has time for it.
    assert "input" in gains(diagnose(on_device(0.05, suspects=(loader,), **slow)))


def test_copies_that_wait_for_a_busy_device_cost_nothing() -> None:
    copies = suspect(operator_seconds=0.03, copy_seconds=0.03)
    hidden = diagnose(on_device(0.093, suspects=(copies,)))
    assert gains(hidden) == {"compute": 0.0}
    exposed = on_device(0.093, suspects=(copies,), exposed_copy=0.02)
    assert gains(diagnose(exposed)) == {"transfer": 27.0}


def test_a_copy_that_nobody_waits_for_needs_a_stream_of_its_own() -> None:
    copies = suspect(seconds=0.0002, device_seconds=0.03, operator_seconds=0.03, copy_seconds=0.03)
    exposed = {"exposed_copy": 0.03, "bounds": (Bound("transfer", None, 0.03, "all copies"),)}
    for seen in ((copies,), (replace(copies, operator_seconds=0.1),)):
        (found,) = diagnose(on_device(0.099, suspects=seen, **exposed)).findings
        assert found.cause == "transfer"
        assert "on a stream of its own" in found.advice
    waiting = diagnose(on_device(0.099, suspects=(replace(copies, syncs=1),), **exposed))
    assert "from pinned memory" in waiting.findings[0].advice


def test_nothing_gives_back_more_than_the_device_idles_and_does_for_it() -> None:
    assert gains(diagnose(on_device(0.08, suspects=(suspect(),)))) == {"host": 20.0}
    # A loop of small kernels: without it they vanish from the device too.
    loop = suspect(**MANY, device_seconds=0.04)
    assert gains(diagnose(on_device(0.095, suspects=(loop,))))["launch"] == pytest.approx(39.8)
    few = diagnose(on_device(0.095, suspects=(replace(loop, device_seconds=0.01),)))
    assert gains(few)["launch"] == pytest.approx(15.0)
    assert "and works 10.0 ms for this" in few.findings[0].evidence


def test_a_line_inside_a_model_takes_what_the_device_takes_for_it() -> None:
    queued = suspect(**{**MANY, "seconds": 0.001}, device_seconds=0.08)
    (found,) = diagnose(on_device(0.09, suspects=(queued,))).findings
    assert (found.cause, found.line) == ("launch", LINE.line)
    assert found.gain_ms == pytest.approx(80, rel=0.02)


@pytest.mark.parametrize(
    ("cause", "told"),
    [("sync", {"sync": 30.0}), ("transfer", {"transfer": 30.0}), ("input", {"compute": 0.0})],
)
def test_what_a_replay_gives_back_is_a_cause(cause: Any, told: dict[str, float]) -> None:
    reads = suspect(seconds=0.0001, syncs=1, copy_seconds=0.0001)
    bound = Bound(cause, None, 0.03, "something")
    seen = diagnose(
        on_device(
            0.06, bounds=(bound,), idle={"python": 0.04}, exposed_copy=0.03, suspects=(reads,)
        )
    )
    assert gains(seen) == told
    if cause != "input":
        assert seen.findings[0].line == LINE.line, "the line that does it, not its function"
    # What was tried is not estimated again.
    tried = {"changes": (change(cause, site=None),), "windows": blocks(removed=STEP)}
    assert cause not in gains(diagnose(on_device(0.06, bounds=(bound,), **tried)))


def test_what_comes_now_and_then_is_not_told_from_two_mapped_steps() -> None:
    # Of two steps one evaluated the model, but of many only every fifth did.
    rarely = suspect(phase="evaluation", seconds=0.01, device_seconds=0.04)
    assert gains(diagnose(on_device(0.099, suspects=(rarely,)))) == {"evaluation": 10.0}


def test_reading_values_costs_what_a_replay_without_waiting_gives_back() -> None:
    reads = suspect(seconds=0.03, syncs=40, launches=40)
    bound = Bound("sync", None, 0.012, "waiting in synchronizing calls")
    assert gains(diagnose(on_device(0.05, suspects=(reads,)))) == {"sync": 30.0}
    (found,) = diagnose(on_device(0.05, suspects=(reads,), bounds=(bound,))).findings
    assert (found.cause, round(found.gain_ms, 1)) == ("sync", 12.0)


def test_a_trial_lost_in_noise_leaves_what_the_device_was_seen_to_lose() -> None:
    noisy = tuple(
        replace(each, seconds=each.seconds * (1 + (each.block + (each.variant == AGAIN)) % 2))
        for each in blocks(removed=0.06)
    )
    loader = suspect(key="input", phase="input", seconds=0.04)
    tried = {"suspects": (loader,), "changes": (change("input", site=None),), "windows": noisy}
    assert gains(diagnose(on_device(0.05, **tried))) == {"compute": 0.0}
    bound = Bound("input", None, 0.06, "the loader", idle=0.08)
    (found,) = diagnose(
        on_device(0.05, bounds=(bound,), idle={"loader": 0.08, "python": 0.02}, **tried)
    ).findings
    assert (found.cause, round(found.gain_ms), found.verified) == ("input", 40, False)


def test_copies_whose_trial_is_lost_in_noise_cost_what_the_device_only_copies() -> None:
    noisy = tuple(
        replace(each, seconds=each.seconds * (1 + (each.block + (each.variant == AGAIN)) % 2))
        for each in blocks(removed=0.03)
    )
    copies = suspect(seconds=0.05, operator_seconds=0.05, copy_seconds=0.05, syncs=1)
    tried: dict[str, Any] = {"changes": (change("transfer", site=None),), "exposed_copy": 0.04}
    (found,) = diagnose(on_device(0.099, suspects=(copies,), windows=noisy, **tried)).findings
    assert (found.cause, round(found.gain_ms), found.verified) == ("transfer", 40, False)
    assert "the device does nothing but copy for 40.0 ms of a step" in found.evidence
    # Not where the windows tell,
    clear = diagnose(on_device(0.099, suspects=(copies,), windows=blocks(removed=0.03), **tried))
    assert clear.findings[0].verified
    # nor of copies that nobody waits for: the trial changes nothing about them.
    pinned = on_device(0.099, suspects=(replace(copies, syncs=0),), windows=noisy, **tried)
    assert gains(diagnose(pinned)) == {"compute": 0.0}


def test_launches_spread_over_a_model_belong_to_the_whole_step() -> None:
    bound = Bound("launch", LAYER, 0.05, "launching")
    spread = tuple(DeviceLine(replace(LAYER, line=at), 0.001, 0.001, 10.0, 0.0) for at in range(10))
    (found,) = diagnose(on_device(0.03, bounds=(bound,), lines=spread)).findings
    assert (found.cause, found.line, round(found.gain_ms)) == ("launch", 0, 70)
    assert "graphs (`diagnose prove train.py --with compile`), a larger batch" in found.advice
    # Not where the device hardly waits,
    assert gains(diagnose(on_device(0.093, bounds=(bound,), lines=spread))) == {"compute": 0.0}
    # nor beside a loop that launches most of it, nor where the host does something else.
    loop = suspect(**MANY, device_seconds=0.02)
    (found,) = diagnose(on_device(0.03, bounds=(bound,), suspects=(loop,))).findings
    assert (found.cause, found.line) == ("launch", LINE.line)
    busy_host = on_device(0.03, bounds=(bound,), idle={"python": 0.1})
    assert gains(diagnose(busy_host)) == {"compute": 0.0}


def test_an_update_may_save_what_it_takes_of_the_device() -> None:
    fused = {"changes": (change("optimizer", site=None),), "windows": blocks(removed=0.07)}
    phases = {"forward": 0.03, "backward": 0.03, "optimizer": 0.035}
    told = gains(diagnose(on_device(0.099, phases=phases, **fused)))["optimizer"]
    assert 10 < told <= 35, "what it was seen to take, whatever copies of it give back"


def test_a_larger_batch_that_was_tried_stands_for_the_launches_that_it_spreads() -> None:
    bound = Bound("launch", LAYER, 0.05, "launching")
    batch = {"changes": (change("batch", samples=0.5),), "windows": blocks(removed=0.09)}
    (found,) = diagnose(on_device(0.03, bounds=(bound,), **batch)).findings
    assert found.cause == "batch"
    assert "CUDA graphs" in found.advice


def test_an_allocator_that_retries_is_named_with_its_setting() -> None:
    large = suspect(seconds=0.001, new_bytes=2**30)
    (found,) = diagnose(on_device(0.06, retries=2.0, suspects=(large,))).findings
    assert (found.cause, found.line) == ("allocation", LINE.line)
    assert "2.0 times per step" in found.evidence
    assert "expandable_segments:True" in found.advice
    # Once in twenty-five steps it cannot be what the device idles for in all of them.
    assert gains(diagnose(on_device(0.06, retries=0.04, suspects=(large,)))) == {"compute": 0.0}
    (few,) = diagnose(on_device(0.06, retries=0.1, suspects=(large,))).findings
    assert (few.cause, round(few.gain_ms)) == ("allocation", 10)


def test_exposed_exchanges_are_seen_on_the_device() -> None:
    bound = Bound("communication", None, 0.05, "all exchanges between ranks")
    (found,) = diagnose(on_device(0.09, bounds=(bound,), exposed_communication=0.03)).findings
    assert found.cause == "communication"
    assert found.gain_ms == pytest.approx(30)


def test_a_healthy_step_names_the_lines_that_the_device_works_for() -> None:
    (found,) = diagnose(on_device(0.097)).findings
    assert found.cause == "compute"
    assert "the device is busy for 97 % of a step" in found.evidence
    assert "model.py:5 (87.3 ms, 10 % of the float32 ceiling)" in found.evidence
