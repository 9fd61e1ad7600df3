"""Is a gate read as it is written, refused in one sentence, and turned into an exit code?"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import pytest

from diagnose.commands.cli import main
from diagnose.commands.shared.arguments import gate
from diagnose.commands.shared.verdict import Output
from diagnose.records.diagnosis import Gate
from diagnose.records.script import ScriptRecord
from tests.support.records.script import golden_record, record


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("input>10%", Gate("input", 0.1)),
        ("any>5%", Gate(None, 0.05)),
        (" sync > 0.5 % ", Gate("sync", 0.005)),
        ("any>0%", Gate(None, 0.0)),
    ],
)
def test_a_gate_names_a_cause_and_a_share(text: str, expected: Gate) -> None:
    assert gate(text) == expected
    assert gate(expected.name) == expected


@pytest.mark.parametrize(
    "text",
    [
        *("", "input", "input>10", "inputs>10%", "input<10%", "input>x%", "input>-1%", ">10%"),
        *("input>101%", "compute>10%", "input>nan%", "any>", "input>10%>5%"),
    ],
)
@pytest.mark.parametrize("verb", ["script", "watch"])
def test_a_bad_gate_is_one_sentence(
    capsys: pytest.CaptureFixture[str], verb: str, text: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        main([verb, "--fail-on", text, "train.py"])
    assert ended.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"'{text}' is not a gate; write a cause and a percentage" in line


@pytest.mark.parametrize(
    ("found", "gates", "code", "said"),
    [
        (golden_record(), ["input>10%"], 1, "FAILED"),
        (golden_record(), ["input>50%"], 0, "PASSED"),
        (golden_record(), ["input>38%"], 3, "INCONCLUSIVE"),
        (golden_record(), ["input>50%", "batch>5%"], 3, "INCONCLUSIVE"),
        (golden_record(), ["batch>5%", "launch>10%"], 1, "FAILED"),
        (golden_record(), [], 0, ""),
        (replace(record(), step_seconds=(), missing="no step"), ["any>50%"], 3, "INCONCLUSIVE"),
    ],
)
def test_gates_become_an_exit_code(
    capsys: pytest.CaptureFixture[str], found: ScriptRecord, gates: list[str], code: int, said: str
) -> None:
    words = {"json": None, "label": None, "reports": Path(), "fail_on": [gate(e) for e in gates]}
    output = Output(argparse.Namespace(**words))
    output.write(found)
    assert output.code == code
    told = [line for line in capsys.readouterr().err.splitlines() if "--fail-on" in line]
    assert len(told) == len(gates)
    assert said in "".join(told)
