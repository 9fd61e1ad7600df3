"""How is one rank kept in check? Started, listened to, and ended for sure.

No torch here. A rank has ended when its process says so, is gone, is silent for too long, or is
of no use any more because another rank has ended.
"""

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
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from diagnose.measure.child import ROOT
from diagnose.measure.ranks.job.ends import End
from diagnose.measure.words import one_sentence

# A rank whose peer has ended notices it at once in a collective; this is for the rest.
GRACE_SECONDS = 3.0
# The process group's own time-out comes first and says more, so a supervisor waits a bit longer.
MARGIN_SECONDS = 5.0
# Loading torch on a cold disk, before the first word.
START_SECONDS = 120.0
# What NCCL writes before it takes its process down because another rank did not come.
_WATCHDOG = "Watchdog caught collective operation timeout"


class RankProcess:
    """The process of one rank, in a session of its own, so that nothing of it can outlive it."""

    def __init__(self, order: Mapping[str, Any], variables: Mapping[str, str]) -> None:
        read_end, write_end = os.pipe()
        path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the process
        self._process = subprocess.Popen(
            [sys.executable, "-m", "diagnose.measure.ranks.job.member", str(write_end)],
            stdin=subprocess.PIPE,
            stdout=self._log,
            stderr=self._log,
            pass_fds=(write_end,),
            start_new_session=True,
            env={**os.environ, **variables, "PYTHONPATH": path},
        )
        os.close(write_end)
        self._lines = read_end
        self._unread = b""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError), self._process.stdin as request:
            request.write(json.dumps(order).encode() + b"\n")

    def listen(self, seconds: float) -> list[tuple[str, Any]]:
        """What it said, as (kind, content); waits up to `seconds` for the first word."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._lines, selectors.EVENT_READ)
            while selector.select(seconds):
                received = os.read(self._lines, 1 << 16)
                if not received:
                    # The end of the pipe is readable for ever: do not spin while it winds up.
                    time.sleep(0.01)
                    break
                self._unread += received
                seconds = 0.0
        *whole, self._unread = self._unread.split(b"\n")
        return [item for line in whole for item in json.loads(line).items()]

    @property
    def is_gone(self) -> bool:
        return self._process.poll() is not None

    @property
    def is_stopped(self) -> bool:
        """Whether a signal has stopped it: it lives, but it cannot answer."""
        if self.is_gone:
            return False
        seen = os.waitid(
            os.P_PID, self._process.pid, os.WSTOPPED | os.WEXITED | os.WNOHANG | os.WNOWAIT
        )
        return seen is not None and seen.si_code == os.CLD_STOPPED

    def describe_end(self) -> str:
        """How a process ended that did not say so itself."""
        code = self._process.wait()
        if code < 0:
            return f"was killed by {signal.Signals(-code).name}"
        lines = self._read_log().strip().splitlines()
        return f"exited with {code}" + (f" ({one_sentence(lines[-1])})" if lines else "")

    @property
    def was_left_alone(self) -> bool:
        """Whether the library took it down because another rank did not come."""
        return _WATCHDOG in self._read_log()

    def _read_log(self) -> str:
        self._log.seek(0)
        return self._log.read().decode(errors="replace")

    def end(self) -> None:
        """Kill the whole session: loader workers too, and also what is stopped."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        os.close(self._lines)
        self._log.close()


class Watch:
    """One rank under observation, from its start to its end."""

    def __init__(
        self,
        rank: int,
        process: RankProcess,
        on_line: Callable[[str, Any], None],
        timeout_seconds: float,
    ) -> None:
        self.rank = rank
        self._process = process
        self._on_line = on_line
        self._timeout_seconds = timeout_seconds
        self._where = "start"
        self._heard = time.monotonic()
        self._trouble_since: float | None = None

    def look(self, peers: Sequence[End], seconds: float) -> End | None:
        """Pass on what the rank said; its end, once it has one. `peers` ended earlier."""
        gone = self._process.is_gone  # asked first: what it said before it went is still read
        for kind, content in self._process.listen(seconds):
            self._heard = time.monotonic()
            if kind == "end":
                return End(**{"rank": self.rank, "where": self._where, **content})
            if kind == "at":
                self._where = content
            self._on_line(kind, content)
        if gone:
            return self._explain_gone()
        return self._explain_peers(peers) or self._explain_silence()

    def interrupted(self) -> End:
        """The end of a rank that nobody wants any more."""
        return End(self.rank, "interrupted", "was interrupted", self._where)

    def _explain_gone(self) -> End:
        if self._process.was_left_alone:
            return End(self.rank, "lost peers", "waited for another rank in vain", self._where)
        return End(self.rank, "failed", self._process.describe_end(), self._where)

    def _explain_peers(self, peers: Sequence[End]) -> End | None:
        """Others have ended early: this rank cannot go on, and may be why."""
        kinds = {end.kind for end in peers} - {"done"}
        if not kinds:
            return None
        if self._process.is_stopped:
            return End(self.rank, "stopped", "was stopped by a signal", self._where)
        now = time.monotonic()
        self._trouble_since = self._trouble_since or now
        if now - self._trouble_since < GRACE_SECONDS:
            return None
        if kinds == {"lost peers"}:
            return End(self.rank, "hung", "stopped answering", self._where)
        return End(self.rank, "lost peers", "was ended because another rank had", self._where)

    def _explain_silence(self) -> End | None:
        patience = START_SECONDS if self._where == "start" else 0.0
        patience += self._timeout_seconds + MARGIN_SECONDS
        if time.monotonic() - self._heard < patience:
            return None
        if self._process.is_stopped:
            return End(self.rank, "stopped", "was stopped by a signal", self._where)
        return End(self.rank, "hung", f"stopped answering for {patience:g} s", self._where)
