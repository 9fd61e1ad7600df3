"""How do the ranks of a distributed script keep together, and how do they tell one story?

Rank 0 decides how many steps every pass takes, because clocks differ and steps do not; at the
end the others hand their times to it. All of it goes through the store that torchrun keeps.
"""

from __future__ import annotations

import json
import os
from datetime import timedelta
from typing import Any

from diagnose.codec import from_dict, to_dict
from diagnose.findings import RankTimes
from diagnose.measure.ranks.rendezvous import Place, open_rooms, open_store, read_place

# A rank that is behind is still in the same step.
LONGEST_STEP_SECONDS = 120.0
# After the last step the others only have to write their times down.
LONGEST_FAREWELL_SECONDS = 20.0


class Ranks:
    """This process among the others; alone it agrees with itself."""

    def __init__(self) -> None:
        self._place: Place | None = None
        self._decisions = 0
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

    def agree(self, value: Any) -> Any:
        """What rank 0 says."""
        if self._place is None:
            return value
        key = f"decision/{self._decisions}"
        self._decisions += 1
        if self.rank == 0:
            self._store.set(key, json.dumps(value))
            return value
        self._store.wait([key], timedelta(seconds=LONGEST_STEP_SECONDS))
        return json.loads(self._store.get(key))

    def gather(self, times: RankTimes) -> tuple[RankTimes, ...]:
        """Every rank's times on rank 0; those of a rank that is gone are missing."""
        if self._place is None:
            return ()
        self._store.set(f"times/{self.rank}", json.dumps(to_dict(times)))
        if self.rank:
            # Rank 0 may keep the store itself: it must not go before everything is read.
            self._wait("read")
            return ()
        found = []
        for rank in range(self.count):
            if self._wait(f"times/{rank}"):
                text = self._store.get(f"times/{rank}")
                found.append(from_dict(RankTimes, json.loads(text), f"rank {rank}"))
        self._store.set("read", "1")
        return tuple(found)

    def _wait(self, key: str) -> bool:
        try:
            self._store.wait([key], timedelta(seconds=LONGEST_FAREWELL_SECONDS))
        except RuntimeError:  # also DistStoreError: nobody wrote it
            return False
        return True
