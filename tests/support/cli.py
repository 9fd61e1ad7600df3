"""How do tests run the program? As its user does: a command, its output, its exit code."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from diagnose.commands.cli import main
from diagnose.measure.stages import STAGE_KEYS

ROOT = Path(__file__).parents[2]
FAULTY = "tests/support/jobs/faulty.py"
TIMEOUT_SECONDS = 240
# A killed process needs a moment to go.
WIND_UP_SECONDS = 10


@dataclass(frozen=True)
class Outcome:
    """What a command left behind: words, and processes that should have ended."""

    code: int
    out: str
    err: str
    left: tuple[int, ...] = ()

    @property
    def complaints(self) -> list[str]:
        """The lines of stderr that speak of an error."""
        lines = self.err.splitlines()
        return [each.removeprefix("diagnose: ") for each in lines if each.startswith("diagnose: ")]

    @property
    def complaint(self) -> str:
        """The only one."""
        assert len(self.complaints) == 1, self.err
        return self.complaints[0]


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
    inherited = {name: value for name, value in os.environ.items() if name != "RANK"}
    return {**inherited, "COLUMNS": "200", **extra}


def diagnose(*arguments: object, **extra: str) -> Outcome:
    """Run the program, with these variables added to its environment."""
    return launch(command(*arguments), extra)


def diagnose_here(*arguments: object, **extra: str) -> Outcome:
    """The same, but its command line runs in this process; what measures is still a new one.

    Where only the measuring process is in question, this saves a start of Python and pandas.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        for name, value in {"COLUMNS": "200", **extra}.items():
            patch.setenv(name, value)
        return heard(lambda: main(_words(arguments)))


def heard(action: Callable[[], int]) -> Outcome:
    """What a command says that runs in this process; its signal handlers do not stay."""
    said, complained = io.StringIO(), io.StringIO()
    handlers = {each: signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)}
    with redirect_stdout(said), redirect_stderr(complained):
        try:
            code: object = action()
        except SystemExit as ending:  # argparse
            code = ending.code
        finally:
            for each, handler in handlers.items():
                signal.signal(each, handler)
    assert isinstance(code, int)
    assert "Traceback" not in complained.getvalue()
    return Outcome(code, said.getvalue(), complained.getvalue())


def start(
    words: Sequence[str], extra: Mapping[str, str], seconds: float = TIMEOUT_SECONDS
) -> subprocess.CompletedProcess[str]:
    """Run it to its end, whatever it says."""
    return subprocess.run(
        words,
        cwd=ROOT,
        env=environment(extra),
        capture_output=True,
        text=True,
        timeout=seconds,
        stdin=subprocess.DEVNULL,
        check=False,
    )


def launch(words: Sequence[str], extra: Mapping[str, str]) -> Outcome:
    done = start(words, extra)
    assert "Traceback" not in done.stderr, done.stderr
    return Outcome(done.returncode, done.stdout, done.stderr)


def private_mounts(*commands: str) -> list[str]:
    """A prefix: the words after it run on what these commands mount, which nobody else sees."""
    probe = ["unshare", "-m", "mount", "-t", "tmpfs", "tmpfs", "/mnt"]
    able = shutil.which("unshare") is not None
    if not able or subprocess.run(probe, capture_output=True, timeout=30).returncode:
        pytest.skip("mounting a file system needs root and mount namespaces")
    return ["unshare", "-m", "sh", "-c", " && ".join([*commands, 'exec "$@"']), "sh"]


def git(folder: Path, *words: str) -> str:
    identity = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    done = subprocess.run(
        ["git", *identity, *words],
        cwd=folder,
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    )
    return done.stdout.strip()


@dataclass(frozen=True)
class Started:
    """A command on its way, and the mark that all its processes carry."""

    process: subprocess.Popen[str]
    token: str

    def wait_until(self, is_so: Callable[[], object], seconds: float = 120) -> None:
        deadline = time.monotonic() + seconds
        while not is_so():
            assert self.process.poll() is None, self.process.communicate(timeout=WIND_UP_SECONDS)[1]
            assert time.monotonic() < deadline
            time.sleep(0.05)

    def interrupt(self, kind: signal.Signals = signal.SIGINT) -> Outcome:
        self.process.send_signal(kind)
        return self.finish()

    def finish(self) -> Outcome:
        out, err = self.process.communicate(timeout=TIMEOUT_SECONDS)
        deadline = time.monotonic() + WIND_UP_SECONDS
        while (left := processes_with(self.token)) and time.monotonic() < deadline:
            time.sleep(0.1)
        return Outcome(self.process.returncode, out, err, tuple(left))


@contextlib.contextmanager
def started(
    words: Sequence[str], extra: Mapping[str, str] | None = None, cwd: Path = ROOT
) -> Iterator[Started]:
    """The command, which nothing of outlives the block."""
    token = uuid.uuid4().hex
    process = subprocess.Popen(
        words,
        cwd=cwd,
        env=environment({**(extra or {}), "JOB_TOKEN": token}),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield Started(process, token)
    finally:
        for pid in processes_with(token):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.communicate(timeout=WIND_UP_SECONDS)


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
