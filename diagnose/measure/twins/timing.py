"""How much faster is the repaired script really? Both run in turns, a block of steps at a time.

What slows the machine down for a while slows both sides of a pair of blocks; a script that waits
for its turn uses no processor.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

from diagnose.measure.words import one_sentence

ROOT = Path(__file__).resolve().parents[3]
LIVENESS_SECONDS = 0.5
# Imports, data, the first steps: whatever a script does before it is steady.
WARMUP_STEPS = 5
# For a process that ends its own children.
POLITE_SECONDS = 10.0


class CouldNotPace(Exception):
    """A script ended, hung or could not be started; the message is one sentence."""


def python_words(ranks: int) -> list[str]:
    """How Python is started once, or once for every rank."""
    if ranks == 1:
        return [sys.executable]
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    return [sys.executable, *launcher]


def time_twins(
    scripts: Sequence[Path],
    *,
    ranks: int,
    blocks: int,
    block_steps: int,
    settle_steps: int,
    step_seconds: float,
) -> list[list[float]]:
    """Mean seconds per step in each block, for each script; the order within a block is random.

    `step_seconds` is the longest that one step may take before a script counts as hung.
    """
    order = random.Random(0)
    means: list[list[float]] = [[] for _ in scripts]
    with contextlib.ExitStack() as stack:
        paced = [stack.enter_context(_paced(script, ranks, step_seconds)) for script in scripts]
        for each in paced:
            each.run(WARMUP_STEPS)
        for _ in range(blocks):
            for side in order.sample(range(len(paced)), len(paced)):
                seconds = paced[side].run(settle_steps + block_steps)
                means[side].append(statistics.fmean(seconds[settle_steps:]))
    return means


@contextlib.contextmanager
def _paced(script: Path, ranks: int, step_seconds: float) -> Iterator[PacedScript]:
    # The path of a socket must be short, so it cannot lie beside the script.
    with (
        tempfile.TemporaryDirectory() as folder,
        tempfile.TemporaryFile() as log,
        socket.socket(socket.AF_UNIX) as listener,
    ):
        path = Path(folder, "pace")
        listener.bind(str(path))
        listener.listen()
        words = [*python_words(ranks), "-m", "diagnose.measure.twins.paced", str(path), str(script)]
        with (
            started(words, log, log) as process,
            PacedScript(process, listener, log, step_seconds) as paced,
        ):
            yield paced


@contextlib.contextmanager
def started(
    words: Sequence[str], stdout: int | IO[bytes], stderr: IO[bytes]
) -> Iterator[subprocess.Popen[bytes]]:
    """A process in a session of its own, ended for sure."""
    process = None
    try:
        with _interruptions_wait():
            process = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                cwd=ROOT,
                start_new_session=True,
            )
        yield process
    finally:
        if process is not None:
            _end(process)


@contextlib.contextmanager
def _interruptions_wait() -> Iterator[None]:
    """One that came while a process is being started would leave nobody who knows of it."""
    caught = []
    usual = {
        number: signal.signal(number, lambda *_: caught.append(True))
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield
    finally:
        for number, handler in usual.items():
            signal.signal(number, handler)
    if caught:
        raise KeyboardInterrupt


def _end(process: subprocess.Popen[bytes]) -> None:
    """torchrun ends its ranks, which have sessions of their own, if it is given the time."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(POLITE_SECONDS)
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


class PacedScript:
    """One script that runs when it is told to."""

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        listener: socket.socket,
        log: IO[bytes],
        step_seconds: float,
    ) -> None:
        self._process = process
        self._log = log
        self._step_seconds = step_seconds
        self._unread = b""
        self._connection = self._accept(listener)

    def __enter__(self) -> PacedScript:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def run(self, steps: int) -> list[float]:
        """Seconds of each of the next steps."""
        deadline = time.monotonic() + steps * self._step_seconds
        try:
            self._connection.sendall(f"{steps}\n".encode())
            while b"\n" not in self._unread:
                self._connection.settimeout(max(0.001, deadline - time.monotonic()))
                received = self._connection.recv(1 << 16)
                if not received:
                    raise CouldNotPace(self._last_words())
                self._unread += received
        except TimeoutError:
            raise CouldNotPace(
                f"{steps} steps took over {steps * self._step_seconds:g} s"
            ) from None
        except OSError:
            raise CouldNotPace(self._last_words()) from None
        line, self._unread = self._unread.split(b"\n", 1)
        seconds: list[float] = json.loads(line)
        return seconds

    def _accept(self, listener: socket.socket) -> socket.socket:
        deadline = time.monotonic() + WARMUP_STEPS * self._step_seconds
        listener.settimeout(LIVENESS_SECONDS)
        while True:
            try:
                return listener.accept()[0]
            except TimeoutError:
                if self._process.poll() is not None:
                    raise CouldNotPace(self._last_words()) from None
                if time.monotonic() > deadline:
                    raise CouldNotPace("it did not start in time") from None

    def _last_words(self) -> str:
        """How it ended, and the last line that it wrote."""
        try:
            code = self._process.wait(self._step_seconds)
        except subprocess.TimeoutExpired:
            return "it closed its connection and did not end"
        self._log.seek(0)
        lines = self._log.read().decode(errors="replace").strip().splitlines()
        said = f": {one_sentence(lines[-1])}" if lines else ""
        return f"it ended with code {code} before its steps were done{said}"
