"""How do tests run the program? As its user does: a command, its output, its exit code."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from diagnose.commands.cli import main
from diagnose.measure.stages import STAGE_KEYS

ROOT = Path(__file__).parents[2]
FAULTY = "tests/support/jobs/faulty.py"


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
    return [sys.executable, "-m", "diagnose", *_words(arguments)]


def _words(arguments: Sequence[object]) -> list[str]:
    words = [str(each) for each in arguments]
    if words[:1] == ["run"] and "--stages" not in words:
        words += ["--stages", *STAGE_KEYS]
    return words


def environment(extra: Mapping[str, str]) -> dict[str, str]:
    return {**os.environ, "COLUMNS": "200", **extra}


TIMEOUT_SECONDS = 240


def diagnose(*arguments: object, **extra: str) -> Outcome:
    """Run the program, with these variables added to its environment."""
    return launch(command(*arguments), extra)


def diagnose_here(*arguments: object, **extra: str) -> Outcome:
    """The same, but its command line runs in this process; what measures is still a new one.

    Where only the measuring process is in question, this saves a start of Python and pandas.
    """
    said, complained = io.StringIO(), io.StringIO()
    handlers = {each: signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)}
    with (
        pytest.MonkeyPatch.context() as patch,
        redirect_stdout(said),
        redirect_stderr(complained),
    ):
        patch.chdir(ROOT)
        for name, value in {"COLUMNS": "200", **extra}.items():
            patch.setenv(name, value)
        try:
            code: object = main(_words(arguments))
        except SystemExit as ending:  # argparse
            code = ending.code
    for each, handler in handlers.items():
        signal.signal(each, handler)
    assert isinstance(code, int)
    assert "Traceback" not in complained.getvalue()
    return Outcome(code, said.getvalue(), complained.getvalue())


def start(words: Sequence[str], extra: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """Run it to its end, whatever it says."""
    return subprocess.run(
        words,
        cwd=ROOT,
        env=environment(extra),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        stdin=subprocess.DEVNULL,
        check=False,
    )


def launch(words: Sequence[str], extra: Mapping[str, str]) -> Outcome:
    done = start(words, extra)
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
