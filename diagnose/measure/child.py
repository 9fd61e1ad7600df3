"""How is the measuring process kept in check? Started, asked, waited for, and ended for sure."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from diagnose.measure.words import one_sentence

ROOT = Path(__file__).resolve().parents[2]
LIVENESS_SECONDS = 0.5


class ChildDied(Exception):
    """The child ended by itself; the message says how."""


class ChildHung(Exception):
    """The child did not answer in time."""


class Child:
    """One measuring process in a session of its own, so that nothing of it can outlive it."""

    def __init__(self) -> None:
        read_end, write_end = os.pipe()
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the child
        self._process = subprocess.Popen(
            [sys.executable, "-m", "diagnose.measure.worker", str(write_end)],
            stdin=subprocess.PIPE,
            stdout=self._log,
            stderr=self._log,
            pass_fds=(write_end,),
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": _python_path()},
        )
        os.close(write_end)
        self._answers = read_end
        self._unread = b""

    def ask(
        self, request: object, seconds: float, on_progress: Callable[[list[Any]], None]
    ) -> tuple[str, Any]:
        """Send one request; return the kind and content of its answer."""
        deadline = time.monotonic() + seconds
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise ChildDied(self._last_words()) from None
        while True:
            ((kind, content),) = self._read_line(deadline).items()
            if kind != "progress":
                return kind, content
            on_progress(content)

    def _read_line(self, deadline: float) -> dict[str, Any]:
        with selectors.DefaultSelector() as selector:
            selector.register(self._answers, selectors.EVENT_READ)
            while b"\n" not in self._unread:
                # Loader workers inherit the pipe and may keep it open after the child is gone,
                # so the end of the pipe alone does not tell.
                gone = self._process.poll() is not None
                left = deadline - time.monotonic()
                if selector.select(max(0.0, min(left, LIVENESS_SECONDS))):
                    received = os.read(self._answers, 1 << 16)
                    if not received:
                        raise ChildDied(self._last_words())
                    self._unread += received
                elif gone:
                    raise ChildDied(self._last_words())
                elif left <= 0:
                    raise ChildHung
        line, self._unread = self._unread.split(b"\n", 1)
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _last_words(self) -> str:
        """How it ended, and the last line it wrote: often the library's own explanation."""
        code = self._process.wait()
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with {code}"
        self._log.seek(0)
        lines = self._log.read().decode(errors="replace").strip().splitlines()
        return f"the measuring process {how}" + (f": {one_sentence(lines[-1])}" if lines else "")

    def end(self) -> None:
        """Kill the whole session: loader workers too, and also one that is stopped."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        if self._process.stdin is not None:
            self._process.stdin.close()
        os.close(self._answers)
        self._log.close()


def _python_path() -> str:
    """The child must find this package from any working directory."""
    return os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
