"""Traces of the simulated device, whose truth is known. Not those of any hardware."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from diagnose.analyze.trace.rules import diagnose
from diagnose.measure.trace.explain import explain
from diagnose.measure.trace.keep import log_events
from diagnose.measure.trace.reading import read_traces

ROOT = Path(__file__).parents[3]
TIMEOUT_SECONDS = 120


@dataclass(frozen=True)
class Kernel:
    """As a device logs it."""

    number: int
    launched: float
    start: float
    end: float
    kind: str = "kernel"
    name: str = "mm"
    device: int = 0
    stream: int = 0
    bytes: float = 0.0
    thread: int = 7


@dataclass(frozen=True)
class Wait:
    """As a device logs it."""

    start: float
    end: float
    thread: int = 7


def test_a_log_is_explained_like_a_trace() -> None:
    # Every 10 ms: a copy that holds the host for 2 ms, a kernel of 3 ms that is waited for, and
    # 5 ms in which the host does something else.
    kernels, waits, events = [], [], []
    for step in range(6):
        at = step * 10e-3
        kernels += [
            Kernel(2 * step, at, at, at + 2e-3, "to device"),
            Kernel(2 * step + 1, at + 2e-3, at + 2e-3, at + 5e-3),
        ]
        waits += [Wait(at + 10e-6, at + 2e-3), Wait(at + 2.1e-3, at + 5e-3)]
        mark = {"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{step}"}
        events.append({**mark, "ts": at * 1e6, "dur": 10e3, "pid": os.getpid(), "tid": 7})
    rank = explain([*events, *log_events(kernels, waits)])
    told = rank.steps[2]
    assert (told.seconds, told.busy) == pytest.approx((10e-3, 5e-3))
    assert told.exposed_copy == pytest.approx(2e-3)
    assert told.idle == pytest.approx({"python": 5e-3})
    bounds = {each.cause: each.seconds for each in rank.bounds}
    # Without waiting the host needs 7.1 ms; the first step gives back what it waits for the copy.
    assert bounds["sync"] == pytest.approx(2.9e-3, rel=0.05)
    assert bounds["transfer"] == pytest.approx(2e-3, rel=0.05)
    assert bounds["host"] == pytest.approx(5e-3, rel=0.05)


@pytest.mark.alone
@pytest.mark.parametrize(
    ("name", "profile", "cause", "function"),
    [
        ("input_rows", "slow", "input", "smooth"),
        ("launch_rows", "h100", "launch", "<listcomp>"),
        ("compute_plain", "slow", "compute", ""),
    ],
)
def test_the_cause_is_found_in_the_file_alone(
    tmp_path: Path, fakegpu_env: dict[str, str], name: str, profile: str, cause: str, function: str
) -> None:
    trace = tmp_path / "trace.json.gz"
    script = ROOT / "bench" / "planted_async" / name / "slow.py"
    for _ in range(3):  # a few steps of a busy machine may show anything
        subprocess.run(
            [sys.executable, "-m", "bench.traced", str(script), str(trace)],
            cwd=ROOT,
            env={**os.environ, **fakegpu_env, "FAKEGPU_PROFILE": profile},
            capture_output=True,
            timeout=TIMEOUT_SECONDS,
            check=True,
        )
        record = read_traces([trace], "test")
        assert record.header.source == "fake device"
        first = diagnose(record).findings[0]
        if first.cause == cause:
            break
    assert first.cause == cause
    assert first.function == function or not function
