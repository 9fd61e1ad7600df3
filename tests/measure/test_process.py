"""What becomes of a process that dies, hangs or is started while somebody presses Ctrl-C?"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from diagnose.measure.process import Died, Hung, Process


@contextmanager
def running(code: str) -> Iterator[Process]:
    process = Process(["-c", f"import os, sys, time\n{code}"])
    try:
        yield process
    finally:
        process.end()


@pytest.mark.parametrize(
    ("code", "ending"),
    [
        ("sys.exit('no data in /home/ann/x.csv')", "exited with 1 (no data in x.csv)"),
        ("os.abort()", "was killed by SIGABRT"),
        ("print('warning', file=sys.stderr)\nos.kill(os.getpid(), 9)", "was killed by SIGKILL"),
    ],
)
def test_a_process_that_died_says_how(code: str, ending: str) -> None:
    with running(code) as process, pytest.raises(Died) as caught:
        process.ask("steps", 5, seconds=30)
    assert str(caught.value) == ending


def test_an_answer_comes_after_progress_and_whatever_is_printed() -> None:
    code = """
from diagnose.measure.process import Parent
parent = Parent()
for kind, content in parent.requests():
    print('{"done": "not an answer"}', flush=True)
    assert sys.stdin.read() == ""
    parent.tell("progress", [1])
    parent.tell("done", [kind, content])
"""
    seen: list[Any] = []
    with running(code) as process:
        answers = [process.ask("double", number, 30, seen.append) for number in (1, 2)]
    assert answers == [("done", ["double", 1]), ("done", ["double", 2])]
    assert seen == [[1], [1]]


def test_a_stopped_process_is_hung_and_ended_all_the_same() -> None:
    with running("time.sleep(600)") as process:
        os.kill(process._process.pid, signal.SIGSTOP)
        with pytest.raises(Hung):
            process.ask("steps", 5, seconds=0.2)
        assert process.is_stopped
    assert process.is_gone


def test_an_interruption_while_starting_leaves_nothing_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    started: list[subprocess.Popen[bytes]] = []
    popen = subprocess.Popen

    def interrupted(*words: Any, **options: Any) -> subprocess.Popen[bytes]:
        started.append(popen(*words, **options))
        signal.raise_signal(signal.SIGINT)
        return started[0]

    monkeypatch.setattr(subprocess, "Popen", interrupted)
    with pytest.raises(KeyboardInterrupt):
        Process(["-c", "import time; time.sleep(600)"])
    assert started[0].poll() == -signal.SIGKILL
