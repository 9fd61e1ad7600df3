"""How do the ranks of a distributed script keep together, and how do they tell one story?

Rank 0 decides how many steps every pass takes, because clocks differ and steps do not; at the
end the others hand their times to it. All of it goes through the store that torchrun keeps. A
rank that fails or dies is named by one of those that are left.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

from diagnose.measure.ranks.job.rendezvous import Place, open_rooms, open_store, read_place
from diagnose.measure.script.program import Enough
from diagnose.records.codec import from_dict, to_dict
from diagnose.records.script import RankTimes

# A rank that is behind is still in the same step.
LONGEST_STEP_SECONDS = 120.0
# After the last step the others only have to write their times down.
LONGEST_FAREWELL_SECONDS = 20.0
# The others of a rank that failed wait for it in an exchange, until its process has ended.
FAREWELL_AFTER_FAILURE_SECONDS = 5.0
POLL_SECONDS = 0.05
# A job of hundreds that fails everywhere need not be listed.
MOST_NAMED = 4
SILENT = "did not answer"


class Ranks:
    """This process among the others; alone it agrees with itself."""

    def __init__(self) -> None:
        self._place: Place | None = None
        self._decisions = 0
        self._troubles: dict[int, str] = {}
        self._called_off = False
        if int(os.environ.get("WORLD_SIZE", "1")) > 1:
            self._place = read_place()
            store = open_store(self._place, LONGEST_STEP_SECONDS)
            self._store = open_rooms(self._place, store, "script")

    @property
    def count(self) -> int:
        return self._place.world_size if self._place is not None else 1

    @property
    def rank(self) -> int:
        return self._place.rank if self._place is not None else 0

    @property
    def complaint(self) -> str:
        """Which ranks failed, and how."""
        named = [f"rank {rank} {what}" for rank, what in sorted(self._troubles.items())]
        more = [f"and {len(named) - MOST_NAMED} more"] if len(named) > MOST_NAMED else []
        return ", ".join(named[:MOST_NAMED] + more)

    def agree(self, value: Any) -> Any:
        """What rank 0 says."""
        if self._place is None:
            return value
        key = f"decision/{self._decisions}"
        self._decisions += 1
        if self.rank == 0:
            self._store.set(key, json.dumps(value))
            return value
        try:
            self._store.wait([key], timedelta(seconds=LONGEST_STEP_SECONDS))
        except RuntimeError:  # rank 0 is gone, or takes longer than any step
            raise Enough from None
        return json.loads(self._store.get(key))

    @contextlib.contextmanager
    def hearing_calls_off(self) -> Iterator[None]:
        """When a rank dies torchrun ends the others by a signal: there is time to say so."""
        if self._place is None:
            yield
            return

        def call_off(*_: object) -> None:
            self._called_off = True

        handler = signal.signal(signal.SIGTERM, call_off)
        try:
            yield
        finally:
            signal.signal(signal.SIGTERM, handler)

    def gather(self, times: RankTimes, trouble: str = "") -> tuple[RankTimes, ...]:
        """Every rank's times on rank 0. `trouble` is how this rank failed, if it did."""
        if self._place is None:
            return ()
        if trouble:
            self._troubles[self.rank] = trouble
        patience = FAREWELL_AFTER_FAILURE_SECONDS if trouble else LONGEST_FAREWELL_SECONDS
        try:
            return self._exchange(times, trouble, time.monotonic() + patience)
        except RuntimeError:  # the store was kept by rank 0, and is gone with it
            self._troubles[0] = SILENT
            return ()

    def is_reporter(self) -> bool:
        """Rank 0, unless it does not answer: then the first that notices it."""
        if self._place is None:
            return True
        if self.rank and self._troubles.get(0) != SILENT:
            return False
        try:
            return int(self._store.add("reporters", 1)) == 1
        except RuntimeError:
            return self.rank == 1

    def _exchange(self, times: RankTimes, trouble: str, until: float) -> tuple[RankTimes, ...]:
        message = {"times": to_dict(times), "trouble": trouble}
        self._store.set(f"times/{self.rank}", json.dumps(message))
        if self.rank:
            # One that leaves with an error has the others ended, so it waits for rank 0.
            if not self._wait("read", until):
                self._troubles[0] = SILENT
            return ()
        found = []
        for rank in range(self.count):
            if not self._wait(f"times/{rank}", until):
                self._troubles.setdefault(rank, SILENT)
                continue
            message = json.loads(self._store.get(f"times/{rank}"))
            found.append(from_dict(RankTimes, message["times"], f"rank {rank}"))
            if message["trouble"]:
                self._troubles[rank] = message["trouble"]
        self._store.set("read", "1")
        return tuple(found)

    def _wait(self, key: str, until: float) -> bool:
        """Asks again and again: a wait inside the store would not hear a signal."""
        while not self._store.check([key]):
            if self._called_off or time.monotonic() > until:
                return False
            time.sleep(POLL_SECONDS)
        return True
