"""Which of the other ranks are still there? Each counts up in the store as long as it lives.

A rank that dies leaves no word. On this host its process is gone, which can be seen at once;
of one on another host, or of one that was stopped, only the silence tells.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from diagnose.measure.ranks.job.rendezvous import Place

if TYPE_CHECKING:
    from torch.distributed.distributed_c10d import Store

BEAT_SECONDS = 1.0
# A busy host may let some beats fall out; nobody should wait longer for a rank that is gone.
SILENCE_SECONDS = 20.0


@dataclass
class _Sign:
    """What was last seen of a rank."""

    beats: int
    seconds: float  # on the monotonic clock
    pid: int | None  # of a process that this one can see


class Pulse:
    """Shows the others that this rank lives, and watches some of them."""

    def __init__(self, place: Place, store: Store, watched: Sequence[int]) -> None:
        self._place = place
        self._store = store
        self._watched = watched
        self._signs: dict[int, _Sign] = {}
        self._ended = threading.Event()
        # In a thread of its own: the rank itself waits for a probe, for minutes at times.
        self._thread = threading.Thread(target=self._beat, daemon=True, name="pulse")
        self._thread.start()
        # A thread that is still inside torch when Python ends would abort the process.
        atexit.register(self.stop)

    def stop(self) -> None:
        atexit.unregister(self.stop)
        self._ended.set()
        self._thread.join(BEAT_SECONDS)

    def find_end(self, rank: int) -> str:
        """How a rank has ended; empty while it lives, or has not appeared yet."""
        sign = self._signs.get(rank)
        if sign is None:
            return ""
        if sign.pid is not None and not _is_sibling(sign.pid):
            return f"rank {rank} is gone: its process has ended"
        if time.monotonic() - sign.seconds > SILENCE_SECONDS:
            return (
                f"rank {rank} is gone: no sign of life for {SILENCE_SECONDS:g} s; its process is "
                "stopped, or its host or link is down"
            )
        return ""

    def find_any_end(self) -> str:
        return next(filter(None, map(self.find_end, self._watched)), "")

    def _beat(self) -> None:
        mine = self._place
        with contextlib.suppress(RuntimeError):  # the store is gone, which others will tell
            self._store.set(f"process/{mine.rank}", f"{mine.node} {os.getpid()}")
            while not self._ended.is_set():
                self._store.add(f"pulse/{mine.rank}", 1)
                for rank in self._watched:
                    self._look_at(rank)
                self._ended.wait(BEAT_SECONDS)

    def _look_at(self, rank: int) -> None:
        beats = int(self._store.add(f"pulse/{rank}", 0))
        sign = self._signs.get(rank)
        if sign is None and beats > 0:
            self._signs[rank] = _Sign(beats, time.monotonic(), self._find_process(rank))
        elif sign is not None and beats != sign.beats:
            sign.beats, sign.seconds = beats, time.monotonic()

    def _find_process(self, rank: int) -> int | None:
        node, pid = map(int, self._store.get(f"process/{rank}").split())
        return pid if node == self._place.node and _is_sibling(pid) else None


def _is_sibling(pid: int) -> bool:
    """Whether it runs and has our parent; a stranger may get its number, or see another one."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return False
    state, parent = fields[0], int(fields[1])
    return parent == os.getppid() and state not in ("Z", "X")
