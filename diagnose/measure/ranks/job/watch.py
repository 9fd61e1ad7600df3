"""When has a rank ended? When its process says so, is gone, is silent for too long, or is of no
use any more because another rank has ended.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from diagnose.measure.process import Process, own_module
from diagnose.measure.ranks.job.ends import End, Kind

# A rank whose peer has ended notices it at once in a collective; this is for the rest.
GRACE_SECONDS = 3.0
# The process group's own time-out comes first and says more, so a supervisor waits a bit longer.
MARGIN_SECONDS = 5.0
# Loading torch on a cold disk, before the first word.
START_SECONDS = 120.0
# What NCCL writes before it takes its process down because another rank did not come.
_NCCL_GAVE_UP = "Watchdog caught collective operation timeout"


class Watch:
    """The process of one rank under observation, from its start to its end."""

    def __init__(
        self,
        order: Mapping[str, Any],
        variables: Mapping[str, str],
        on_line: Callable[[str, Any], None],
    ) -> None:
        self.rank = int(variables["RANK"])
        self._timeout_seconds: float = order["timeout_seconds"]
        self._on_line = on_line
        self._where = "start"
        self._heard = time.monotonic()
        self._trouble_since: float | None = None
        self._process = Process(own_module("diagnose.measure.ranks.job.member"), variables)
        self._process.send("order", order)

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
        return self._end("interrupted", "was interrupted")

    def end(self) -> None:
        self._process.end()

    def _explain_gone(self) -> End:
        if _NCCL_GAVE_UP in self._process.read_errors():
            return self._end("lost peers", "waited for another rank in vain")
        return self._end("failed", self._process.describe_end())

    def _explain_peers(self, peers: Sequence[End]) -> End | None:
        """Others have ended early: this rank cannot go on, and may be why."""
        kinds = {end.kind for end in peers} - {"done"}
        if not kinds:
            return None
        if self._process.is_stopped:
            return self._end("stopped", "was stopped by a signal")
        now = time.monotonic()
        self._trouble_since = self._trouble_since or now
        if now - self._trouble_since < GRACE_SECONDS:
            return None
        if kinds == {"lost peers"}:
            return self._end("hung", "stopped answering")
        return self._end("lost peers", "was ended because another rank had")

    def _explain_silence(self) -> End | None:
        patience = START_SECONDS if self._where == "start" else 0.0
        patience += self._timeout_seconds + MARGIN_SECONDS
        if time.monotonic() - self._heard < patience:
            return None
        if self._process.is_stopped:
            return self._end("stopped", "was stopped by a signal")
        return self._end("hung", f"stopped answering for {patience:g} s")

    def _end(self, kind: Kind, reason: str) -> End:
        return End(self.rank, kind, reason, self._where)
