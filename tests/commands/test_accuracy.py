"""The accuracy of the tool: the command as its user runs it, and the timing of twins."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from bench.planted.truth import CASES
from diagnose.analyze.accuracy import Judged
from diagnose.measure.accuracy import ask_tool
from diagnose.measure.twins.cases import find_lines
from diagnose.measure.twins.timing import CouldNotTime, time_twins
from diagnose.records.accuracy import AccuracyRecord
from diagnose.render import store
from diagnose.render.check import check
from tests.support.cli import launch, started

TOOL = "tests/support/fake_script_tool.py"
COMMAND = [sys.executable, "-m", "diagnose", "accuracy", "--tool", TOOL, "--blocks", "1"]
HEALTHY = {"cause": "compute"}


def told(**said: object) -> dict[str, str]:
    return {"FAKE_TOOL": json.dumps({"*": HEALTHY, **said})}


# The command ----------------------------------------------------------------------------------


def test_the_command_judges_a_script_and_its_twin(tmp_path: Path) -> None:
    case = next(case for case in CASES if case.name == "host_dashboard")
    line = find_lines(case, case.culprits[0])[0]
    said = {"cause": "host", "line": line + 1, "gain_ms": 9.0}
    alarm = {"cause": "sync", "line": 3, "gain_ms": 9.0}
    words = [*COMMAND, "--only", case.name, "compute_plain", "--reports", str(tmp_path)]
    done = launch(words, told(host_dashboard=said, compute_plain=alarm))
    assert done.code == 1, done.err
    assert "1 of 1 healthy scripts raise a false alarm" in done.out
    assert "goal missed: false alarms on healthy scripts, none" in done.err
    directory = tmp_path / "accuracy-host-dashboard-compute-plain"
    record = store.load(directory / AccuracyRecord.FILE_NAME, AccuracyRecord)
    assert record.complete
    assert record.header.effort == "smoke"
    timed, healthy_one = record.cases
    assert timed.twins is not None
    assert len(timed.twins.slow_seconds) == 1
    assert timed.answer is not None
    assert timed.answer.sentence == "the script slow.py waits"
    assert Judged(timed).line_right
    assert healthy_one.twins is None
    # Only its smoke size speaks against keeping it.
    assert [
        problem for problem in check(tmp_path, allow_dirty=True) if "smoke" not in problem
    ] == []


@pytest.mark.parametrize("name", ["compute_plain", "compute_radar"])
def test_scripts_can_be_told_to_end_by_themselves(tmp_path: Path, name: str) -> None:
    """One takes the number of its steps from the command line, the other from the environment."""
    words = [*COMMAND, "--only", name, "--reports", str(tmp_path), "--short", "0.5"]
    done = launch([*words, "--label", "short"], told())
    assert done.code in (0, 3), done.err  # 3: one pair of blocks proves nothing of twins
    (case,) = store.load(tmp_path / "short" / AccuracyRecord.FILE_NAME, AccuracyRecord).cases
    assert case.answer is not None
    assert 1 <= case.answer.steps != 100
    assert "each script ends by itself after about | 0.5 s" in (
        tmp_path / "short" / "report.md"
    ).read_text(encoding="utf-8")


def test_an_interrupted_run_is_kept_and_resumed(tmp_path: Path) -> None:
    words = [*COMMAND, "--only", "compute_plain", "compute_inference", "--label", "part"]
    words += ["--reports", str(tmp_path)]
    path = tmp_path / "part" / AccuracyRecord.FILE_NAME
    with started(words, told(compute_inference="sleep")) as job:
        job.wait_until(path.exists)
        done = job.interrupt()
    assert (done.code, done.left) == (130, ())
    assert done.complaint.startswith("interrupted; 1 of 2 scripts are in")
    assert "Traceback" not in done.err
    # The finished script is not asked about again: the stand-in would not answer.
    resumed = launch([*words, "--resume"], told(compute_plain="silence"))
    assert resumed.code == 0, resumed.err
    assert "compute_plain:" not in resumed.err
    assert [each.name for each in store.load(path, AccuracyRecord).cases] == [
        "compute_plain",
        "compute_inference",
    ]
    other = launch([*words, "--resume", "--seconds", "9"], told())
    assert other.code == 2
    assert "cannot be resumed: its tool is" in other.complaint


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--only", "nowhere"], "no planted script has 'nowhere' in its name"),
        (["--label", "../up"], "cannot name a directory"),
        (["--simulated", "--short", "5"], "leave out --simulated"),
    ],
)
def test_wrong_usage_is_one_sentence(tmp_path: Path, words: Sequence[str], complaint: str) -> None:
    done = launch([*COMMAND, "--reports", str(tmp_path), *words], told())
    assert done.code == 2
    assert complaint in done.complaint
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("said", "timeout", "reason"),
    [
        ("silence", 60.0, "the tool exited with 1 (no steps were seen) and wrote no answer"),
        ("nonsense", 60.0, "the tool wrote an answer that cannot be read"),
        ({"cause": "magic"}, 60.0, "'magic' is not one of"),
        ({"cause": "sync", "gain_ci": [1.0]}, 60.0, "gain_ci: expected 2 values, found 1"),
        ("sleep", 0.5, "no answer after 0.5 s"),
    ],
)
def test_a_tool_that_fails_is_a_reason(
    monkeypatch: pytest.MonkeyPatch, said: object, timeout: float, reason: str
) -> None:
    monkeypatch.setenv("FAKE_TOOL", json.dumps({"*": said}))
    found = ask_tool(CASES[0], [TOOL], 1.0, timeout)
    assert isinstance(found, str)
    assert reason in found


# Timing ---------------------------------------------------------------------------------------

TURNS = """
import os, pathlib
log = pathlib.Path(__file__).with_name("log")
step = 0
while os.environ.get("RANK", "0") == "0":
    with log.open("a") as file:
        print(pathlib.Path(__file__).stem, step, file=file)
    print("loss", step)
    step += 1
"""


def pace(*scripts: Path, ranks: int = 1, step_seconds: float = 20.0) -> list[list[float]]:
    return time_twins(
        scripts, ranks=ranks, blocks=3, block_steps=4, settle_steps=1, step_seconds=step_seconds
    )


def test_twins_run_in_turns(tmp_path: Path) -> None:
    scripts = [tmp_path / "slow.py", tmp_path / "fixed.py"]
    for script in scripts:
        script.write_text(TURNS)
    means = pace(*scripts)
    assert [len(each) for each in means] == [3, 3]
    assert all(mean > 0 for each in means for mean in each)
    lines = (tmp_path / "log").read_text().split("\n")[:-1]
    # Five warm-up steps and three blocks of five each; the log shows that they did not mix.
    runs = [line.split()[0] for line in lines]
    blocks = [runs[start : start + 5] for start in range(0, len(runs), 5)]
    assert len(blocks) == 8
    assert all(len(set(block)) == 1 for block in blocks)


def test_only_the_first_rank_is_paced(tmp_path: Path) -> None:
    script = tmp_path / "ranks.py"
    script.write_text(TURNS)
    assert [len(each) for each in pace(script, ranks=2)] == [3]


@pytest.mark.parametrize(
    ("code", "step_seconds", "reason"),
    [
        ("raise ValueError('no data')", 20.0, r"exited with 1 .*ValueError: no data"),
        ("print('only one step')", 20.0, "exited with 0 before its steps were done"),
        ("import time\ntime.sleep(600)", 0.2, "5 steps took over 1 s"),
    ],
)
def test_a_script_that_fails_is_a_reason(
    tmp_path: Path, code: str, step_seconds: float, reason: str
) -> None:
    script = tmp_path / "slow.py"
    script.write_text(code)
    with pytest.raises(CouldNotTime, match=reason):
        pace(script, step_seconds=step_seconds)
