"""Is the verdict right on a device that works behind the host? Real runs on a simulated one."""

from __future__ import annotations

import json
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bench.planted_async.truth import CASES, Timed
from diagnose.measure.lines.launches import Operator
from diagnose.measure.lines.source import Place
from diagnose.measure.machine.device import Device
from diagnose.measure.script.patches import Patches
from diagnose.measure.script.watch import activity
from diagnose.measure.script.watch.activity import charge
from diagnose.measure.script.watch.work import StepWork
from diagnose.measure.twins.cases import find_lines
from tests.support.cli import ROOT, diagnose

SECONDS = 10
# The table of the first contact with such a device: healthy ones called sick, and the others.
FIRST_CONTACT = (
    "compute_plain on slow",
    "compute_hidden_rows on slow",
    "compute_reads_before_step on slow",
    "compute_reads_after_step on slow",
    "input_rows on slow",
    "launch_rows on h100",
    "batch_thin_layers on h100",
)


def ask(timed: Timed, environment: dict[str, str], tmp_path: Path) -> dict[str, Any]:
    answer = tmp_path / f"{timed.name}.json"
    script = timed.case.slow.relative_to(ROOT)
    outcome = diagnose(
        "script", "--seconds", SECONDS, "--json", answer, script,
        **environment, **timed.variables,
    )  # fmt: skip
    assert outcome.code == 0, outcome.err
    told: dict[str, Any] = json.loads(answer.read_text(encoding="utf-8"))
    return told


@pytest.mark.alone
def test_seven_of_seven_are_right(fakegpu_env: dict[str, str], tmp_path: Path) -> None:
    cases = {timed.name: timed for timed in CASES}
    wrong = {}
    for name in FIRST_CONTACT:
        timed = cases[name]
        told = ask(timed, fakegpu_env, tmp_path)
        first, activity = told["findings"][0], told["record"]["device"]
        lines = [line for each in timed.case.culprits for line in find_lines(timed.case, each)]
        named = not lines or first["line"] in lines or timed.case.causes == ("input",)
        # A whole model that is launched too slowly: a larger batch, or its launches at once.
        spread = name.startswith("batch") and (first["cause"], first["line"]) == ("launch", 0)
        if not spread and (first["cause"] != timed.case.causes[0] or not named):
            wrong[name] = told["sentence"]
        # The bound: what the device idles, and what it does.
        step = told["step_ms"]["mean"]
        assert 0 < activity["busy"] * 1e3 < 1.2 * step, name
        for each in told["findings"]:
            assert each["gain_ms"] <= step, name
    assert wrong == {}


@pytest.mark.parametrize(
    ("slow", "path", "ranks", "recorded"),
    [
        (False, "", 1, [(True, 6)]),
        (True, "", 1, [(True, 2), (False, 6)]),  # the first one starts the profiler
        (True, "kept.json", 1, [(True, 6)]),
        (True, "", 2, [(True, 6)]),  # other ranks would record other steps
    ],
)
def test_python_is_not_recorded_where_that_drags_the_steps(
    slow: bool,
    path: str,
    ranks: int,
    recorded: list[tuple[bool, int]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[tuple[bool, int]] = []

    class Steps:
        def __init__(self, path: str, *, lines: bool, memory: bool) -> None:
            made.append((lines, 0))
            self.is_wanted = True

        def __enter__(self) -> Steps:
            return self

        def __exit__(self, *error: object) -> None:
            pass

        def step(self) -> None:
            made[-1] = made[-1][0], made[-1][1] + 1

        def forget(self) -> None:
            pass

    monkeypatch.setattr(activity, "Recording", Steps)
    watch: Any = SimpleNamespace(device=Device("cpu"))
    seen: Any = SimpleNamespace(typical_seconds=1e-3)
    with Patches() as patches:
        for _ in activity.record_steps(watch, seen, patches, path, ranks):
            time.sleep(0.12 if slow and made[-1][0] else 0)
    assert made == recorded


def test_a_kernel_belongs_to_the_operator_that_launched_it() -> None:
    line, other = Place("train.py", 3, "train"), Place("model.py", 8, "forward")
    operators = [
        Operator(line, False, 101.0, 101.1),
        Operator(other, False, 102.0, 102.1),
        Operator(other, True, 103.0, 103.1),
    ]
    work = StepWork()
    # The second was launched between two operators: by whoever looked at their results.
    launched = [(101.05, 0.5), (101.5, 9.0), (102.01, 0.2), (103.09, 0.3), (105.0, 1.0)]
    charge(work, operators, launched)
    assert work.line(line).kernels == 1
    assert work.line(line).device_seconds == pytest.approx(0.5)
    assert work.line(other).device_seconds == pytest.approx(0.2)
    assert work.line(other).device_backward_seconds == pytest.approx(0.3)
    assert work.line(other).kernels == 2
