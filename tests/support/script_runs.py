"""How do tests run somebody's script? In this process, for a moment, with what was recorded."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path

from diagnose.analyze.script.rules import diagnose
from diagnose.measure.script.program import End
from diagnose.measure.script.session import Session
from diagnose.records.diagnosis import Diagnosis
from diagnose.records.script import Options, ScriptRecord
from tests.support.records.script import HEADER

# Short, but long enough that the planted work, which is most of a step, is seen everywhere.
QUICK = Options(steps=120, seconds=8.0, warmup=2)


def write_script(directory: Path, code: str, name: str = "train.py") -> Path:
    path = directory / name
    path.write_text(textwrap.dedent(code), encoding="utf-8")
    return path


def run_script(script: Path, options: Options = QUICK) -> tuple[End, ScriptRecord, Diagnosis]:
    return _run(script, options, ())


def diagnose_script(
    script: Path, arguments: Sequence[str], seconds: float
) -> tuple[End, ScriptRecord, Diagnosis]:
    """With arguments of its own, and time for the verdict alone."""
    return _run(script, Options(seconds=seconds, warmup=2), arguments)


def _run(
    script: Path, options: Options, arguments: Sequence[str]
) -> tuple[End, ScriptRecord, Diagnosis]:
    records: list[ScriptRecord] = []
    end = Session(script, lambda: HEADER, options, records.append).run(arguments)
    return end, records[0], diagnose(records[0])


def line_of(script: Path, mark: str) -> int:
    """The line that ends with the mark."""
    lines = script.read_text(encoding="utf-8").splitlines()
    return next(number for number, line in enumerate(lines, 1) if line.endswith(mark))
