"""Ctrl-C at any moment: exit code 130, nothing half written, nobody left behind; then resume."""

from __future__ import annotations

import json
import signal
import sys
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from tests.support.cli import (
    FAULTY,
    Started,
    command,
    diagnose_here,
    processes_with,
    start,
    started,
    statuses,
)

ARGUMENTS = ("run", "--workload", FAULTY, "--smoke", "--label", "cut", "--stages")


def run(reports: Path, *stages: str, **extra: str) -> AbstractContextManager[Started]:
    return started(command(*ARGUMENTS, *stages, "--reports", reports), extra)


def test_an_interrupted_run_keeps_its_stages_and_resumes(tmp_path: Path) -> None:
    path = tmp_path / "cut" / "run.json"
    with run(tmp_path, "inference", "training", "loader", FAULT="sleep") as job:
        job.wait_until(path.exists)  # inference is saved, training sleeps
        done = job.interrupt()
    assert (done.code, done.left) == (130, ())
    assert "Traceback" not in done.err
    assert done.complaint.startswith("interrupted; 1 of 3 stages are in ")

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
    mark = tmp_path / "mark"
    with run(tmp_path, stage, WAIT_IN=place, MARK=str(mark)) as job:
        job.wait_until(mark.exists)
        done = job.interrupt(kind)
    assert (done.code, done.left) == (130, ())
    assert "Traceback" not in done.err
    assert not (tmp_path / "cut" / "run.json").exists(), "half a stage is no result"


def test_an_interrupt_while_torch_is_loaded_leaves_nothing_broken(tmp_path: Path) -> None:
    stages = ("ceilings", "inference", "training", "loader", "real_data")
    with run(tmp_path, *stages, FAULT="sleep") as job:
        # The program and its measuring process.
        job.wait_until(lambda: len(processes_with(job.token)) >= 2)
        done = job.interrupt()
    assert (done.code, done.left) == (130, ())
    assert "Traceback" not in done.err
    path = tmp_path / "cut" / "run.json"
    if path.exists():
        assert set(statuses(json.loads(path.read_text())).values()) == {"done"}


def test_two_runs_of_one_label_do_not_mix_and_a_killed_one_takes_its_child_along(
    tmp_path: Path,
) -> None:
    path = tmp_path / "cut" / "run.json"
    with run(tmp_path, "inference", "training", FAULT="sleep") as job:
        job.wait_until(path.exists)
        saved = path.read_bytes()
        second = diagnose_here(*ARGUMENTS, "inference", "--reports", tmp_path)
        assert second.code == 3
        assert "another run" in second.complaint
        assert path.read_bytes() == saved
        assert job.interrupt(signal.SIGKILL).left == ()


def test_tests_that_interrupt_work_where_interrupts_are_ignored() -> None:
    """As under `make test &` or nohup: what ignores a signal hands this on to its children."""
    kinds = [int(each) for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)]
    ignore = f"import os, signal, sys; [signal.signal(each, signal.SIG_IGN) for each in {kinds}]; "
    ignore += "os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
    interrupt = "import os, sys, time; os.kill(os.getpid(), int(sys.argv[1])); time.sleep(60)"
    of_a_test = "import subprocess, sys, tests.conftest; print([-subprocess.run("
    of_a_test += f"[sys.executable, '-c', sys.argv[1], str(each)]).returncode for each in {kinds}])"
    done = start([sys.executable, "-c", ignore, "-c", of_a_test, interrupt], {})
    assert done.stdout == f"{kinds}\n", done.stderr
