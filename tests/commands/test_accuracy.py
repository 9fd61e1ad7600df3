"""The accuracy of the tool: the command as its user runs it, the timing of twins, the verdicts."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench.planted.truth import CASES
from diagnose.analyze.accuracy import Judged, goals, judge, judge_case
from diagnose.commands.accuracy import ask_tool
from diagnose.measure.twins.cases import find_lines
from diagnose.measure.twins.timing import CouldNotPace, time_twins
from diagnose.records.accuracy import (
    AccuracyRecord,
    Answer,
    CaseResult,
    PlantedCulprit,
    Said,
    Twins,
)
from diagnose.records.header import Header, Reading
from diagnose.render import store
from diagnose.render.accuracy.figure import accuracy_figures
from diagnose.render.accuracy.report import FIGURE_NAME, answer, render_accuracy
from diagnose.render.check import check, write_index, write_report
from tests.support.cli import ROOT, environment, launch, processes_with
from tests.support.records.parts import machine

TOOL = "tests/support/fake_script_tool.py"
COMMAND = [sys.executable, "-m", "diagnose.commands.accuracy", "--tool", TOOL, "--blocks", "1"]
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
    record = store.load(directory / store.ACCURACY_NAME, AccuracyRecord)
    assert record.complete
    assert record.header.effort == "smoke"
    timed, healthy_one = record.cases
    assert timed.twins is not None
    assert len(timed.twins.slow_seconds) == 1
    assert timed.answer is not None
    assert timed.answer.sentence == "the script slow.py waits"
    assert judge_case(timed).line_right
    assert healthy_one.twins is None
    # Only its smoke size speaks against keeping it.
    assert [problem for problem in check(tmp_path) if "smoke" not in problem] == []


def test_an_interrupted_run_is_kept_and_resumed(tmp_path: Path) -> None:
    words = [*COMMAND, "--only", "compute_plain", "compute_inference", "--label", "part"]
    words += ["--reports", str(tmp_path)]
    token = f"ACCURACY_TEST_{os.getpid()}"
    extra = {**told(compute_inference="sleep"), token: "1"}
    with subprocess.Popen(
        words, cwd=ROOT, env=environment(extra), stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        assert process.stderr.readline().startswith("compute_plain: compute, said compute")
        process.send_signal(signal.SIGINT)
        error = process.stderr.read()
    assert process.returncode == 130
    assert "diagnose: interrupted; 1 of 2 scripts are in" in error
    assert "Traceback" not in error
    assert processes_with(token) == []
    # The finished script is not asked about again: the stand-in would not answer.
    resumed = launch([*words, "--resume"], told(compute_plain="silence"))
    assert resumed.code == 0, resumed.err
    assert "0 of 2 healthy scripts raise a false alarm" in resumed.out
    assert "compute_plain:" not in resumed.err


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--only", "nowhere"], "no planted script has 'nowhere' in its name"),
        (["--label", "../up"], "cannot name a directory"),
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
        ("silence", 60.0, "the tool ended with code 1 and wrote no answer: no steps were seen"),
        ("nonsense", 60.0, "the tool wrote an answer that cannot be read"),
        ({"cause": "magic"}, 60.0, "'magic' is not one of"),
        ({"cause": "sync", "gain_ci": [1.0]}, 60.0, "not enough values"),
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
        ("raise ValueError('no data')", 20.0, "ended with code 1 .*ValueError: no data"),
        ("print('only one step')", 20.0, "ended with code 0 before its steps were done"),
        ("import time\ntime.sleep(600)", 0.2, "5 steps took over 1 s"),
    ],
)
def test_a_script_that_fails_is_a_reason(
    tmp_path: Path, code: str, step_seconds: float, reason: str
) -> None:
    script = tmp_path / "slow.py"
    script.write_text(code)
    with pytest.raises(CouldNotPace, match=reason):
        pace(script, step_seconds=step_seconds)


# Verdicts -------------------------------------------------------------------------------------


def found(cause: str, file: str, line: int, gain: float, low: float, high: float) -> Said:
    """In a step of 50 ms."""
    return Said(cause, file, line, gain, low, high, gain / 0.05, verified=True)


def planted(**changes: Any) -> CaseResult:
    """An input case that the tool got right: 20 ms of 50 are lost, 21 are promised."""
    return replace(
        CaseResult(
            name="input_case",
            culprits=(PlantedCulprit("input", "slow.py", (30, 50)),),
            answer=said(found("input", "slow.py", 31, 0.021, 0.020, 0.022)),
            twins=twins(0.050, 0.030),
            seconds=40.0,
        ),
        **changes,
    )


def healthy(*findings: Said) -> CaseResult:
    only = found("compute", "slow.py", 1, 0.0, 0.0, 0.0)
    given = said(*(findings or (only,)))
    return CaseResult("compute_case", (), given, twins_reason="there is nothing to repair")


def said(*findings: Said) -> Answer:
    return Answer("The step waits.", 300, Reading(0.05), Reading(0.002), findings)


def twins(slow: float, fixed: float, work: int = 1) -> Twins:
    jitter = (0.999, 1.0, 1.001, 1.0, 0.998, 1.002, 1.0)
    return Twins(tuple(slow * j for j in jitter), tuple(fixed * j for j in jitter), work, 10)


def record_of(*cases: CaseResult) -> AccuracyRecord:
    return AccuracyRecord(
        header=Header(
            tool_version="1",
            label="accuracy",
            created="2025-01-01 00:00 UTC",
            source="hardware",
            effort="full",
            machine=machine(gpus=0),
        ),
        tool="python -m diagnose script",
        planned=tuple(case.name for case in cases),
        cases=cases,
        complete=True,
    )


def met(*cases: CaseResult) -> list[bool | None]:
    return [goal.met for goal in goals([judge_case(case) for case in cases])]


def test_right_answers_meet_every_goal() -> None:
    assert met(planted(), healthy()) == [True, True, True, True]
    assert met() == [None, None, None, None]


def wrong_line(line: int, file: str = "slow.py") -> CaseResult:
    return planted(answer=said(found("input", file, line, 0.021, 0.02, 0.022)))


@pytest.mark.parametrize(
    ("case", "expected"),
    [
        (wrong_line(28), [True, True, True, None]),
        (wrong_line(52), [True, True, True, None]),
        (wrong_line(27), [True, False, True, None]),
        (wrong_line(30, "other.py"), [True, False, True, None]),
        (planted(twins=twins(0.050, 0.025)), [True, True, False, None]),
        (planted(answer=None, answer_reason="it crashed"), [False, False, False, None]),
        (planted(answer=said()), [False, False, False, None]),
        # No twin, no error; what was said can still be judged.
        (planted(twins=None, twins_reason="it hung"), [True, True, None, None]),
        (healthy(found("input", "slow.py", 3, 0.01, 0.0, 0.02)), [False, None, None, False]),
    ],
)
def test_each_goal_can_be_missed(case: CaseResult, expected: list[bool | None]) -> None:
    assert met(case) == expected


def test_a_share_is_held_against_its_goal() -> None:
    wrong = planted(answer=said(found("host", "slow.py", 30, 0.02, 0.0, 0.0)))
    assert met(*[planted()] * 19, wrong)[0] is True
    assert met(*[planted()] * 18, wrong)[0] is False
    assert met(*[planted()] * 9, wrong_line(1))[1] is True
    assert met(*[planted()] * 8, wrong_line(1))[1] is False


def test_the_line_of_another_cause_is_not_right() -> None:
    judged = judge_case(planted(answer=said(found("host", "slow.py", 30, 0.02, 0.0, 0.0))))
    assert (judged.cause_right, judged.line_right) == (False, False)


def test_a_larger_batch_is_compared_per_sample() -> None:
    judged = judge_case(planted(twins=twins(0.050, 0.120, work=4)))
    assert judged.real is not None
    assert judged.real.center == pytest.approx(0.020, rel=0.01)


def test_a_slower_minute_is_no_error_of_the_promise() -> None:
    """The machine was half as fast while the tool watched."""
    slower = Said("input", "slow.py", 30, 0.042, 0.040, 0.044, 0.42, verified=True)
    judged = judge_case(planted(answer=said(slower)))
    assert judged.said_seconds == pytest.approx(0.042)
    assert judged.paced_seconds == pytest.approx(0.021, rel=0.01)
    assert judged.gain_error == pytest.approx(0.05, rel=0.05)
    text = render_accuracy(record_of(planted(answer=said(slower))))
    assert "In milliseconds, which were measured in different minutes, it is 110 %" in text


def test_two_causes_are_promised_together() -> None:
    second = PlantedCulprit("launch", "slow.py", (80,))
    first, other = (
        found("input", "slow.py", 30, 0.015, 0.0, 0.1),
        found("launch", "slow.py", 80, 0.006, 0.0, 0.1),
    )
    case = planted(culprits=(*planted().culprits, second), answer=said(first, other))
    assert judge_case(case).said_seconds == pytest.approx(0.021)
    assert judge_case(case).found == 2
    missed = replace(case, answer=said(first))
    assert judge_case(missed).found == 1
    assert "second cause missed" in render_accuracy(record_of(missed))


def test_what_costs_nothing_here_is_listed_and_not_counted() -> None:
    # An interval that also allows a gain takes nothing out of the count.
    unsure = planted(twins=Twins((0.05, 0.09) * 4, (0.05,) * 8, 1, 10))
    assert judge_case(unsure).not_planted == ""
    free = planted(twins=twins(0.050, 0.051))
    sick = replace(healthy(), twins=twins(0.050, 0.030), twins_reason="")
    assert [judge_case(case).not_planted != "" for case in (free, sick)] == [True, True]
    assert met(free, sick) == [None, None, None, None]
    text = render_accuracy(record_of(planted(), free, sick))
    assert "the repaired twin is hardly faster on this machine" in text
    assert "so the script is not healthy here" in text


def test_the_report_tells_what_was_said_of_every_script() -> None:
    alarm = healthy(found("sync", "slow.py", 9, 0.01, 0.0, 0.02))
    silent = planted(name="sync_case", answer=None, answer_reason="no answer after 5 s")
    record = record_of(planted(), silent, alarm)
    text = render_accuracy(record)
    assert answer(record) in text
    assert "| input\\_case | input at slow.py:30/50 | input | slow.py:31 | 20.0" in text
    assert "false alarm |" in text
    assert "no answer after 5 s" in text
    row = next(line for line in text.splitlines() if line.startswith("| compute |"))
    assert row.count("1") == 1  # one healthy script, taken for one with syncs
    assert list(accuracy_figures(record)) == [FIGURE_NAME]
    assert accuracy_figures(record_of(healthy())) == {}


def test_a_committed_report_is_checked(tmp_path: Path) -> None:
    record = record_of(planted(), healthy())
    directory = tmp_path / record.header.label
    store.save(record, directory)
    assert store.load(directory / store.ACCURACY_NAME, AccuracyRecord) == record
    write_report(directory)
    write_index(tmp_path)
    assert check(tmp_path) == []
    report = directory / "report.md"
    report.write_text(report.read_text().replace("1 of 1", "9 of 9"))
    assert len(check(tmp_path)) == 1


def test_an_unfinished_run_says_so() -> None:
    unfinished = replace(record_of(planted()), complete=False)
    assert answer(unfinished).endswith("The run was not finished.")
    assert answer(record_of()) == "No script was diagnosed."
    assert isinstance(judge(unfinished)[0], Judged)
