"""Which batch fits on every rank? All try the same one, and the least of the answers holds for all.

The ranks leave their answers in the store of the job and never meet in a collective, so a rank
that is out of memory cannot make another one wait for ever, and one that is gone is soon missed.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from diagnose.measure.batch_size.pulse import Pulse
from diagnose.measure.ranks.job.rendezvous import Place, open_rooms, open_store
from diagnose.measure.supervisor import CouldNotOpen
from diagnose.records.batch_size import Probe
from diagnose.records.codec import from_dict, to_dict
from diagnose.records.header import Reading

if TYPE_CHECKING:
    from torch.distributed.distributed_c10d import Store

# A rank whose probe broke down first loads torch and its workload again.
REOPEN_SECONDS = 120.0
RENDEZVOUS_SECONDS = 120.0
LOOK_SECONDS = 0.05
# A store that does not answer for so long is out of reach: a dead host or a cut link.
STORE_SECONDS = 5.0
Content = dict[str, object]
Told = TypeVar("Told")
# The last words are already there; this is for a slow network.
FAREWELL_SECONDS = 10.0


class Disagreement(Exception):
    """The ranks do not do the same; the message says what and what to do."""


class _Lost(Exception):
    """A rank gave no answer; the message says which and why."""


class Agreement:
    """The ranks of one job. Every rank must bring the same probes in the same order."""

    def __init__(self, place: Place, probe_seconds: float) -> None:
        self._place = place
        self._store: Store = open_rooms(place, open_store(place, RENDEZVOUS_SECONDS), "batch-size")
        # Rank 0 hears all others, which hear only it.
        others = range(1, place.world_size) if place.rank == 0 else (0,)
        self._pulse = Pulse(place, self._store, others)
        self._patience = probe_seconds + REOPEN_SECONDS
        self._count = 0

    def agree_on_memory(self, available: Reading) -> Reading:
        """The least of all ranks, from which all must guess the same batch."""

        def decide(heard: Sequence[Content]) -> Content:
            readings = [from_dict(Reading, each, "available") for each in heard]
            return to_dict(least_available(readings))

        verdict = self._exchange("available", to_dict(available), decide)
        return from_dict(Reading, verdict, "available")

    def agree(self, probe: Probe) -> Probe:
        """What holds for all ranks; CouldNotOpen if one of them has left."""
        self._count += 1
        room = f"probe/{self._count}"

        def decide(heard: Sequence[Content]) -> Content:
            return to_dict(combine([from_dict(Probe, each, "probe") for each in heard]))

        return from_dict(Probe, self._exchange(room, to_dict(probe), decide), "probe")

    def find_end(self) -> str:
        """Which rank has ended, as far as this one can tell; empty while all are there."""
        return self._pulse.find_any_end()

    def _exchange(
        self, room: str, mine: Content, decide: Callable[[Sequence[Content]], Content]
    ) -> Content:
        """What rank 0 decides from the contents of all."""
        self._say(f"{room}/{self._place.rank}", mine)
        if self._place.rank == 0:
            self._say(f"{room}/verdict", self._hear_all(room, decide))
        # Rank 0 may itself wait for a lost rank, so the others wait a little longer.
        try:
            verdict = self._hear(f"{room}/verdict", 0, self._patience + FAREWELL_SECONDS)
        except _Lost as error:
            raise CouldNotOpen(str(error)) from None
        if "lost" in verdict:
            self.close()
            raise CouldNotOpen(str(verdict["lost"]))
        return verdict

    def _hear_all(self, room: str, decide: Callable[[Sequence[Content]], Content]) -> Content:
        deadline = time.monotonic() + self._patience
        try:
            return decide(
                [
                    self._hear(f"{room}/{rank}", rank, deadline - time.monotonic())
                    for rank in range(self._place.world_size)
                ]
            )
        except (_Lost, Disagreement) as error:
            return {"lost": str(error)}

    def close(self) -> None:
        """Rank 0 may keep the store, so it leaves last."""
        self._pulse.stop()
        self._say(f"bye/{self._place.rank}", {})
        if self._place.rank == 0:
            deadline = time.monotonic() + FAREWELL_SECONDS
            for rank in range(self._place.world_size):
                with contextlib.suppress(_Lost):
                    self._hear(f"bye/{rank}", rank, deadline - time.monotonic())

    def _say(self, key: str, content: Content) -> None:
        self._ask(lambda: self._store.set(key, json.dumps(content)))

    def _hear(self, key: str, rank: int, seconds: float) -> Content:
        """What that rank says; _Lost as soon as it has ended, or when it says nothing."""
        deadline = time.monotonic() + seconds
        while not self._ask(lambda: self._store.check([key])):
            end = self._pulse.find_end(rank)
            if end:
                raise _Lost(end)
            if time.monotonic() > deadline:
                raise _Lost(f"rank {rank} gave no answer within {self._patience:g} s")
            time.sleep(LOOK_SECONDS)
        heard: Content = json.loads(self._ask(lambda: self._store.get(key)))
        return heard

    def _ask(self, work: Callable[[], Told]) -> Told:
        """The store's answer. In a thread: across a link that was cut, one may never come."""
        answers: list[Told] = []

        def try_it() -> None:
            with contextlib.suppress(RuntimeError):  # whatever the store raises, it is gone
                answers.append(work())

        question = threading.Thread(target=try_it, daemon=True, name="store-question")
        question.start()
        question.join(STORE_SECONDS)
        if not answers:
            raise CouldNotOpen("the store of the job is gone: rank 0 has ended or is out of reach")
        return answers[0]


def combine(answers: Sequence[Probe]) -> Probe:
    """The first refusal by rank, else the tightest of all that fit.

    Whatever decides about the next probe must be the same for all ranks.
    """
    batches = [answer.batch for answer in answers]
    if len(set(batches)) > 1:
        tried = ", ".join(f"rank {rank} batch {batch}" for rank, batch in enumerate(batches))
        raise Disagreement(
            f"the ranks tried different batches ({tried}); start all with the same options"
        )
    seconds = max(answer.seconds for answer in answers)
    fresh = all(answer.fresh for answer in answers)
    for rank, answer in enumerate(answers):
        if not answer.fits:
            reason = f"rank {rank}: {answer.reason}"
            return replace(answer, reason=reason, seconds=seconds, fresh=fresh)

    def share(probe: Probe) -> float:
        peak, available = probe.peak_bytes.value, probe.available_bytes.value
        return 0.0 if peak is None or not available else peak / available

    slowest = max(answers, key=lambda each: min(each.step_seconds, default=0.0))
    return replace(
        max(answers, key=share), step_seconds=slowest.step_seconds, seconds=seconds, fresh=fresh
    )


def least_available(readings: Sequence[Reading]) -> Reading:
    """Of all ranks; unknown if one of them does not know."""
    unknown = next((each for each in readings if each.value is None), None)
    return unknown or min(readings, key=lambda each: each.value or 0.0)


def own_card(place: Place, environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The variable with which a rank's child sees the rank's own card as its only one."""
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    cards = visible.split(",") if visible else [str(n) for n in range(place.local_world_size)]
    if place.local_rank >= len(cards):
        return {}  # torch itself then says that there are fewer cards than ranks
    return {"CUDA_VISIBLE_DEVICES": cards[place.local_rank]}
