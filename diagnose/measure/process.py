"""How is a process kept in check? Started, asked or listened to, and ended for sure.

Both ends of the conversation are here. They exchange JSON lines over a socket that the process
finds as its standard input: torchrun hands that on to its ranks, and whatever a workload prints
cannot be mistaken for an answer.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from diagnose.measure.jobs import ROOT
from diagnose.measure.machine.torch_check import UnusableTorch, require_torch
from diagnose.measure.words import one_sentence

# How often a process that says nothing is looked at.
LIVENESS_SECONDS = 0.5
# A stopped process reads nothing; a request that does not fit the socket must not block for ever.
SEND_SECONDS = 5.0
_PR_SET_PDEATHSIG = 1
_PR_SET_TIMERSLACK = 29
_PR_SET_CHILD_SUBREAPER = 36


# `-m` would put the working directory first, where a stranger's diagnose.py may lie.
_RUN_MODULE = (
    "import sys; sys.path[0] = sys.argv[1]; "
    "from diagnose.measure.process import run_module; run_module(sys.argv[2])"
)


def own_module(name: str) -> list[str]:
    """The words with which Python runs a module of this package, whatever the folder holds."""
    return ["-c", _RUN_MODULE, str(ROOT), name]


def run_module(name: str) -> None:
    """In the new process; a torch that cannot be used ends it with one sentence."""
    try:
        require_torch()
    except UnusableTorch as error:
        sys.exit(str(error))
    runpy.run_module(name, run_name="__main__", alter_sys=True)


class Died(Exception):
    """The process ended by itself; the message goes on from "the process ..."."""


class Hung(Exception):
    """The process did not answer in time."""


class Process:
    """A Python process in a session of its own, so that nothing of it can outlive it."""

    def __init__(
        self,
        words: Sequence[str],
        variables: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> None:
        # It must find this package from any working directory.
        path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the process
        self._channel, theirs = socket.socketpair()
        self._unread = b""
        try:
            with theirs, _interruptions_wait():
                self._process = subprocess.Popen(
                    [sys.executable, *words],
                    stdin=theirs.fileno(),
                    stdout=subprocess.DEVNULL,
                    stderr=self._errors,
                    start_new_session=True,
                    cwd=cwd,
                    env={**os.environ, **(variables or {}), "PYTHONPATH": path},
                )
        except KeyboardInterrupt:
            self.end()
            raise

    def send(self, kind: str, content: object) -> None:
        """One line; whether somebody reads it shows in the answer."""
        self._channel.settimeout(SEND_SECONDS)
        with contextlib.suppress(OSError):
            self._channel.sendall(_encode(kind, content))

    def listen(self, seconds: float) -> list[tuple[str, Any]]:
        """What it said, as (kind, content); waits up to `seconds` for the first word."""
        with contextlib.suppress(TimeoutError, BlockingIOError, ConnectionError):
            while True:
                self._channel.settimeout(seconds)
                received = self._channel.recv(1 << 16)
                if not received:
                    # The end can be read for ever: do not spin while the process winds up.
                    time.sleep(0.01)
                    break
                self._unread += received
                seconds = 0.0
        *whole, self._unread = self._unread.split(b"\n")
        return [item for line in whole for item in json.loads(line).items()]

    def ask(
        self,
        kind: str,
        content: object,
        seconds: float,
        on_progress: Callable[[list[Any]], None] = lambda seen: None,
    ) -> tuple[str, Any]:
        """Send one request; the kind and content of its answer, or Died or Hung."""
        self.send(kind, content)
        return self.hear(seconds, on_progress)

    def hear(
        self, seconds: float, on_progress: Callable[[list[Any]], None] = lambda seen: None
    ) -> tuple[str, Any]:
        """Its next answer, or Died or Hung."""
        deadline = time.monotonic() + seconds
        while True:
            # Loader workers inherit the socket and may keep it open after the process is gone,
            # so its end alone does not tell. Asked first: what was said before is still heard.
            gone = self.is_gone
            left = deadline - time.monotonic()
            for said, answer in self.listen(max(0.0, min(left, LIVENESS_SECONDS))):
                if said != "progress":
                    return said, answer
                on_progress(answer)
            if gone:
                raise Died(self.describe_end())
            if left <= 0:
                raise Hung

    def wait(self, seconds: float) -> None:
        """Until it ends by itself; Hung if that takes longer."""
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise Hung from None

    @property
    def is_gone(self) -> bool:
        return self._process.poll() is not None

    @property
    def is_stopped(self) -> bool:
        """Whether a signal has stopped it: it lives, but it cannot answer."""
        if self.is_gone:
            return False
        options = os.WSTOPPED | os.WEXITED | os.WNOHANG | os.WNOWAIT
        seen = os.waitid(os.P_PID, self._process.pid, options)
        return seen is not None and seen.si_code == os.CLD_STOPPED

    def pause(self) -> None:
        """Stop its process group: its workers too, so that they do nothing ahead."""
        self._signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)

    def describe_end(self) -> str:
        """How it ended, and the last line it wrote: often the library's own explanation."""
        code = self._process.wait()
        if code == -signal.SIGKILL:
            return "was killed by SIGKILL"  # whatever it wrote before is no reason
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with {code}"
        lines = self.read_errors().strip().splitlines()
        return how + (f" ({one_sentence(lines[-1])})" if lines else "")

    def read_errors(self) -> str:
        """All that it wrote to standard error."""
        self._errors.seek(0)
        return self._errors.read().decode(errors="replace")

    def end(self, polite_seconds: float = 0.0) -> None:
        """Kill its process group: loader workers too, and also one that is stopped.

        torchrun ends its ranks, which have sessions of their own, if it is given the time.
        """
        with contextlib.suppress(ProcessLookupError):
            if polite_seconds:
                os.killpg(self._process.pid, signal.SIGTERM)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._process.wait(polite_seconds)
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._channel.close()
        self._errors.close()


class Parent:
    """The other end: what a process hears from the one that started it, and tells it."""

    def __init__(self) -> None:
        die_with_parent()
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
        self._channel = socket.socket(fileno=os.dup(0))
        self._lines = self._channel.makefile("r", encoding="utf-8")
        with open(os.devnull) as nothing:
            os.dup2(nothing.fileno(), 0)  # a workload that reads its input finds nothing

    def requests(self) -> Iterator[tuple[str, Any]]:
        """Every request, as (kind, content), until the parent has no more."""
        for line in self._lines:
            yield from json.loads(line).items()

    def tell(self, kind: str, content: object) -> None:
        self._channel.sendall(_encode(kind, content))


def _encode(kind: str, content: object) -> bytes:
    return json.dumps({kind: content}, allow_nan=False).encode() + b"\n"


@contextlib.contextmanager
def _interruptions_wait() -> Iterator[None]:
    """One that came while a process is being started would leave nobody who knows of it."""
    if threading.current_thread() is not threading.main_thread():
        yield  # signals are the main thread's to hear
        return
    caught: set[int] = set()
    # A handler, not SIG_IGN: the new process would inherit that.
    usual = {
        number: signal.signal(number, lambda number, _: caught.add(number))
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield
    finally:
        for number, handler in usual.items():
            signal.signal(number, handler)
    for seen in caught:
        signal.raise_signal(seen)


def die_with_parent(number: signal.Signals = signal.SIGKILL) -> None:
    """A killed parent must not leave a child on the device."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)


def adopt_orphans(adopt: bool) -> None:
    """Processes that a child leaves behind become children of this process."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, int(adopt))


def end_marked(variable: str, value: str, polite_seconds: float) -> None:
    """End the processes below this one that carry the mark in their environment."""
    left = []
    for each in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if each.environ().get(variable) == value:
                each.terminate()
                left.append(each)
    for each in psutil.wait_procs(left, polite_seconds)[1]:
        with contextlib.suppress(psutil.Error):
            each.kill()


def wake_on_time() -> None:
    """For this thread: the system may else add 50 µs to every sleep, to wake several at once."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1)
