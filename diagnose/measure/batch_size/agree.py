"""Which batch fits on every rank? All try the same one, and the least of the answers holds for all.

The ranks leave their answers in the store of the job and never meet in a collective, so a rank
that is out of memory, or gone, cannot make another one wait for ever.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

from diagnose.codec import from_dict, to_dict
from diagnose.measure.ranks.rendezvous import Place, open_rooms, open_store
from diagnose.measure.supervisor import CouldNotOpen
from diagnose.sizes import Probe

if TYPE_CHECKING:
    from torch.distributed.distributed_c10d import Store

# A rank whose probe broke down first loads torch and its workload again.
REOPEN_SECONDS = 120.0
RENDEZVOUS_SECONDS = 120.0
# The last words are already there; this is for a slow network.
FAREWELL_SECONDS = 10.0


class Agreement:
    """The ranks of one job. Every rank must bring the same probes in the same order."""

    def __init__(self, place: Place, probe_seconds: float) -> None:
        self._place = place
        self._store: Store = open_rooms(place, open_store(place, RENDEZVOUS_SECONDS), "batch-size")
        self._patience = probe_seconds + REOPEN_SECONDS
        self._count = 0

    def agree(self, probe: Probe) -> Probe:
        """What holds for all ranks; CouldNotOpen if one of them has left."""
        self._count += 1
        room = f"probe/{self._count}"
        self._say(f"{room}/{self._place.rank}", json.dumps(to_dict(probe)))
        if self._place.rank == 0:
            self._say(f"{room}/verdict", self._decide(room))
        # Rank 0 may itself wait for a lost rank, so the others wait a little longer.
        verdict = self._hear(f"{room}/verdict", self._patience + FAREWELL_SECONDS)
        if verdict is None:
            raise CouldNotOpen(f"rank 0 gave no answer within {self._patience:g} s")
        if "lost" in verdict:
            raise CouldNotOpen(str(verdict["lost"]))
        return from_dict(Probe, verdict, "probe")

    def _decide(self, room: str) -> str:
        deadline = time.monotonic() + self._patience
        answers = []
        for rank in range(self._place.world_size):
            heard = self._hear(f"{room}/{rank}", max(0.001, deadline - time.monotonic()))
            if heard is None:
                lost = f"rank {rank} gave no answer within {self._patience:g} s"
                return json.dumps({"lost": lost})
            answers.append(from_dict(Probe, heard, f"probe of rank {rank}"))
        return json.dumps(to_dict(combine(answers)))

    def close(self) -> None:
        """Rank 0 may keep the store, so it leaves last."""
        self._say(f"bye/{self._place.rank}", "{}")
        if self._place.rank == 0:
            deadline = time.monotonic() + FAREWELL_SECONDS
            for rank in range(self._place.world_size):
                self._hear(f"bye/{rank}", max(0.001, deadline - time.monotonic()))

    def _say(self, key: str, text: str) -> None:
        from torch.distributed import DistError

        try:
            self._store.set(key, text)
        except (DistError, RuntimeError):
            raise CouldNotOpen("the store of the job is gone: rank 0 has ended") from None

    def _hear(self, key: str, seconds: float) -> dict[str, object] | None:
        from torch.distributed import DistError

        try:
            self._store.wait([key], timedelta(seconds=seconds))
            heard: dict[str, object] = json.loads(self._store.get(key))
        except (DistError, RuntimeError):
            return None
        return heard


def combine(answers: Sequence[Probe]) -> Probe:
    """The first refusal by rank, else the tightest of all that fit."""
    for rank, answer in enumerate(answers):
        if not answer.fits:
            return replace(answer, reason=f"rank {rank}: {answer.reason}")

    def share(probe: Probe) -> float:
        peak, available = probe.peak_bytes.value, probe.available_bytes.value
        return 0.0 if peak is None or not available else peak / available

    slowest = max(answers, key=lambda each: min(each.step_seconds, default=0.0))
    return replace(max(answers, key=share), step_seconds=slowest.step_seconds)


def own_card(place: Place, environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The variable with which a rank's child sees the rank's own card as its only one."""
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    cards = visible.split(",") if visible else [str(n) for n in range(place.local_world_size)]
    if place.local_rank >= len(cards):
        return {}  # torch itself then says that there are fewer cards than ranks
    return {"CUDA_VISIBLE_DEVICES": cards[place.local_rank]}
