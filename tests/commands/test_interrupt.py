"""Ctrl-C at any moment: exit code 130, nothing half written, nobody left behind; then resume."""

from __future__ import annotations

import json
import signal
import subprocess
import time
import uuid
from pathlib import Path

import pytest

from tests.support.cli import (
    FAULTY,
    ROOT,
    command,
    diagnose_here,
    environment,
    processes_with,
    statuses,
)

ARGUMENTS = ("run", "--workload", FAULTY, "--smoke", "--label", "cut", "--stages")


def start(reports: Path, token: str, *stages: str, fault: str = "") -> subprocess.Popen[str]:
    return subprocess.Popen(
        command(*ARGUMENTS, *stages, "--reports", reports),
        cwd=ROOT,
        env=environment({"FAULT": fault, "RUN_TOKEN": token}),
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def wait_for(path: Path, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not path.exists():
        assert time.monotonic() < deadline, f"{path} did not appear"
        time.sleep(0.05)


def assert_nobody_left(token: str) -> None:
    deadline = time.monotonic() + 10
    while processes_with(token) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert processes_with(token) == []


def test_an_interrupted_run_keeps_its_stages_and_resumes(tmp_path: Path) -> None:
    token = uuid.uuid4().hex
    process = start(tmp_path, token, "inference", "training", "loader", fault="sleep")
    wait_for(tmp_path / "cut" / "run.json")  # inference is saved, training sleeps
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "Traceback" not in err
    assert "1 of 3 stages are in" in err
    assert_nobody_left(token)

    path = tmp_path / "cut" / "run.json"
    before = json.loads(path.read_text())
    assert statuses(before) == {"inference": "done"}
    assert before["complete"] is False
    assert (tmp_path / "cut" / "report.md").exists()

    again = (*ARGUMENTS, "inference", "training", "loader", "--reports", tmp_path, "--resume")
    assert diagnose_here(*again).code == 0
    after = json.loads(path.read_text())
    assert statuses(after) == dict.fromkeys(("inference", "training", "loader"), "done")
    assert after["complete"] is True
    assert after["stages"][0] == before["stages"][0], "a finished stage is not measured twice"

    outcome = diagnose_here(*again, "--seed", 5)
    assert outcome.code == 2
    assert "cannot resume: the seed" in outcome.complaint, "a different run is not resumed"


@pytest.mark.parametrize(
    ("stage", "place", "kind"),
    [
        ("inference", "inference", signal.SIGTERM),  # nobody but the measuring process
        ("loader", "loading", signal.SIGINT),  # its loader processes too
    ],
)
def test_an_interrupt_inside_a_stage(
    stage: str, place: str, kind: signal.Signals, tmp_path: Path
) -> None:
    token, mark = uuid.uuid4().hex, tmp_path / "mark"
    process = subprocess.Popen(
        command(*ARGUMENTS, stage, "--reports", tmp_path),
        cwd=ROOT,
        env=environment({"RUN_TOKEN": token, "WAIT_IN": place, "MARK": str(mark)}),
        stderr=subprocess.PIPE,
        text=True,
    )
    wait_for(mark)
    process.send_signal(kind)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "Traceback" not in err
    assert_nobody_left(token)
    assert not (tmp_path / "cut" / "run.json").exists(), "half a stage is no result"


# While Python starts, and while torch is loaded or something is measured.
@pytest.mark.parametrize("delay", [0.0, 3.0])
def test_an_interrupt_at_any_time_leaves_nothing_broken(delay: float, tmp_path: Path) -> None:
    token = uuid.uuid4().hex
    process = start(
        tmp_path, token, "ceilings", "inference", "training", "loader", "real_data", fault="sleep"
    )
    while len(processes_with(token)) < 2:  # the program and its measuring process
        time.sleep(0.02)
    time.sleep(delay)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "Traceback" not in err
    assert_nobody_left(token)
    path = tmp_path / "cut" / "run.json"
    if path.exists():
        assert set(statuses(json.loads(path.read_text())).values()) == {"done"}


def test_two_runs_of_one_label_do_not_mix_and_a_killed_one_takes_its_child_along(
    tmp_path: Path,
) -> None:
    token = uuid.uuid4().hex
    first = start(tmp_path, token, "inference", "training", fault="sleep")
    wait_for(tmp_path / "cut" / "run.json")
    saved = (tmp_path / "cut" / "run.json").read_bytes()
    second = diagnose_here(*ARGUMENTS, "inference", "--reports", tmp_path)
    assert second.code == 3
    assert "another run" in second.complaint
    assert (tmp_path / "cut" / "run.json").read_bytes() == saved
    first.kill()
    first.communicate(timeout=30)
    assert_nobody_left(token)
