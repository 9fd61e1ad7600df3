"""How do tests run the program? As its user does: a command, its output, its exit code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from diagnose.measure.stages import STAGE_KEYS

ROOT = Path(__file__).parents[1]
FAULTY = "tests/jobs/faulty.py"


@dataclass(frozen=True)
class Outcome:
    code: int
    out: str
    err: str

    @property
    def complaint(self) -> str:
        """The only line of stderr that speaks of an error."""
        lines = [line for line in self.err.splitlines() if line.startswith("diagnose: ")]
        assert len(lines) == 1, self.err
        return lines[0].removeprefix("diagnose: ")


def command(*arguments: object) -> list[str]:
    """The program with these words; a run leaves out its last stage unless it names its stages.

    Two more processes for every run would double the time of the tests; the stage has its own.
    """
    words = [str(each) for each in arguments]
    if words[:1] == ["run"] and "--stages" not in words:
        words += ["--stages", *STAGE_KEYS]
    return [sys.executable, "-m", "diagnose", *words]


def environment(extra: Mapping[str, str]) -> dict[str, str]:
    return {**os.environ, "COLUMNS": "200", **extra}


TIMEOUT_SECONDS = 240


def diagnose(*arguments: object, **extra: str) -> Outcome:
    """Run the program, with these variables added to its environment."""
    return launch(command(*arguments), extra)


def launch(words: Sequence[str], extra: Mapping[str, str]) -> Outcome:
    done = subprocess.run(
        words,
        cwd=ROOT,
        env=environment(extra),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    assert "Traceback" not in done.stderr, done.stderr
    return Outcome(done.returncode, done.stdout, done.stderr)


def read_record(reports: Path, label: str) -> dict[str, Any]:
    record: dict[str, Any] = json.loads((reports / label / "run.json").read_text())
    return record


def statuses(record: Mapping[str, Any]) -> dict[str, str]:
    return {stage["key"]: stage["status"] for stage in record["stages"]}


def reason(record: Mapping[str, Any], key: str) -> str:
    return next(str(stage["reason"]) for stage in record["stages"] if stage["key"] == key)


def processes_with(token: str) -> list[int]:
    """Processes whose environment carries the token: what a run left behind."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                if token.encode() in (entry / "environ").read_bytes():
                    found.append(int(entry.name))
            except OSError:
                continue  # ended meanwhile
    return found
