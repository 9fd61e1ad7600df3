"""How do tests run somebody's script? In this process, for a moment, with what was recorded."""

from __future__ import annotations

import textwrap
from pathlib import Path

from diagnose.analyze.script.rules import diagnose
from diagnose.measure.script.program import End
from diagnose.measure.script.session import Session
from diagnose.records.diagnosis import Diagnosis
from diagnose.records.script import Options, ScriptRecord
from tests.support.records.script import HEADER

# Short, but long enough that the planted work, which is most of a step, is seen everywhere.
QUICK = Options(steps=90, seconds=3.0, warmup=2)


def write_script(directory: Path, code: str, name: str = "train.py") -> Path:
    path = directory / name
    path.write_text(textwrap.dedent(code), encoding="utf-8")
    return path


def run_script(script: Path, options: Options = QUICK) -> tuple[End, ScriptRecord, Diagnosis]:
    records: list[ScriptRecord] = []
    end = Session(script, lambda: HEADER, options, records.append).run([])
    return end, records[0], diagnose(records[0])


def line_of(script: Path, mark: str) -> int:
    """The line that ends with the mark."""
    lines = script.read_text(encoding="utf-8").splitlines()
    return next(number for number, line in enumerate(lines, 1) if line.endswith(mark))
