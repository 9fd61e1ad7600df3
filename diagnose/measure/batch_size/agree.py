"""Which batch fits on every rank? All try the same one, and the least of the answers holds for all.

The ranks leave their answers in the store of the job and never meet in a collective, so a rank
that is out of memory cannot make another one wait for ever. One that is gone is soon missed: on
this host its process has ended, on another one its heartbeat in the store stops.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import TypeVar

from diagnose.measure.ranks.job.rendezvous import (
    Place,
    Questions,
    is_sibling,
    open_rooms,
    open_store,
)
from diagnose.measure.session import CouldNotOpen
from diagnose.records.batch_size import Probe
from diagnose.records.codec import from_dict, to_dict
from diagnose.records.header import Reading

# A rank whose probe broke down first loads torch and its workload again.
REOPEN_SECONDS = 120.0
RENDEZVOUS_SECONDS = 120.0
LOOK_SECONDS = 0.05
# The last words are already there; this is for a slow network.
FAREWELL_SECONDS = 10.0
BEAT_SECONDS = 1.0
# A busy host may let some beats fall out; nobody should wait longer for a rank that is gone.
SILENCE_SECONDS = 20.0

Content = dict[str, object]
Answer = TypeVar("Answer")
Told = TypeVar("Told", Reading, Probe)


class Disagreement(Exception):
    """The ranks do not do the same; the message says what and what to do."""


class _Lost(Exception):
    """A rank gave no answer; the message says which and why."""


class Agreement:
    """The ranks of one job. Every rank must bring the same probes in the same order."""

    def __init__(self, place: Place, probe_seconds: float) -> None:
        self._place = place
        self._store = open_rooms(place, open_store(place, RENDEZVOUS_SECONDS), "batch-size")
        self._questions = Questions()
        self._patience = probe_seconds + REOPEN_SECONDS
        self._count = 0
        # Of every rank that was heard: its process, if it can be seen from here.
        self._processes: dict[int, int | None] = {}
        self._ask(lambda: self._store.set(f"process/{place.rank}", f"{place.node} {os.getpid()}"))
        self._ended = threading.Event()
        # In a thread of its own: the rank itself waits for a probe, for minutes at times.
        self._heart = threading.Thread(target=self._beat, daemon=True, name="heartbeat")
        self._heart.start()
        # A thread that is still inside torch when Python ends would abort the process.
        atexit.register(self.stop)

    def __enter__(self) -> Agreement:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: object, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        elif kind is KeyboardInterrupt:
            # torchrun interrupts all ranks when one has died, and the user wants to know which.
            for rank in self._processes:
                if self._has_ended(rank):
                    raise CouldNotOpen(_gone(rank)) from None

    def agree_on_memory(self, available: Reading) -> Reading:
        """The least of all ranks, from which all must guess the same batch."""
        return self._exchange("available", available, least_available)

    def agree(self, probe: Probe) -> Probe:
        """What holds for all ranks; CouldNotOpen if one of them has left."""
        self._count += 1
        return self._exchange(f"probe/{self._count}", probe, combine)

    def close(self) -> None:
        """Rank 0 may keep the store, so it leaves last."""
        self.stop()
        self._say(f"bye/{self._place.rank}", {})
        if self._place.rank == 0:
            deadline = time.monotonic() + FAREWELL_SECONDS
            for rank in range(self._place.world_size):
                with contextlib.suppress(_Lost):
                    self._hear(f"bye/{rank}", rank, deadline)

    def stop(self) -> None:
        """Let the heart stand still."""
        atexit.unregister(self.stop)
        self._ended.set()
        self._heart.join(BEAT_SECONDS)

    def _beat(self) -> None:
        with contextlib.suppress(RuntimeError):  # the store is gone, which others will tell
            while not self._ended.is_set():
                self._store.add(f"beats/{self._place.rank}", 1)
                self._ended.wait(BEAT_SECONDS)

    def _exchange(self, room: str, mine: Told, decide: Callable[[Sequence[Told]], Told]) -> Told:
        """What rank 0 decides from what all say: it hears all others, and they hear only it."""
        self._say(f"{room}/{self._place.rank}", to_dict(mine))
        deadline = time.monotonic() + self._patience
        if self._place.rank == 0:
            ranks = range(self._place.world_size)
            try:
                heard = [self._hear(f"{room}/{rank}", rank, deadline) for rank in ranks]
                told = [from_dict(type(mine), each, room) for each in heard]
                self._say(f"{room}/verdict", to_dict(decide(told)))
            except (_Lost, Disagreement) as error:
                self._say(f"{room}/verdict", {"lost": str(error)})
        # Rank 0 may itself wait for a lost rank, so the others wait a little longer.
        try:
            verdict = self._hear(f"{room}/verdict", 0, deadline + FAREWELL_SECONDS)
        except _Lost as error:
            raise CouldNotOpen(str(error)) from None
        if "lost" in verdict:
            self.close()
            raise CouldNotOpen(str(verdict["lost"]))
        return from_dict(type(mine), verdict, room)

    def _say(self, key: str, content: Content) -> None:
        self._ask(lambda: self._store.set(key, json.dumps(content)))

    def _hear(self, key: str, rank: int, deadline: float) -> Content:
        """What that rank says; _Lost as soon as it has ended, or when it says nothing."""
        beats, last_beat = 0, 0.0
        while not self._ask(lambda: self._store.check([key])):
            now, count = time.monotonic(), self._ask(lambda: self._store.add(f"beats/{rank}", 0))
            if count != beats:
                beats, last_beat = count, now
                self._find_process(rank)
            if self._has_ended(rank):
                raise _Lost(_gone(rank))
            if beats and now - last_beat > SILENCE_SECONDS:
                raise _Lost(
                    f"rank {rank} is gone: no sign of life for {SILENCE_SECONDS:g} s; its process "
                    "is stopped, or its host or link is down"
                )
            if now > deadline:
                raise _Lost(f"rank {rank} gave no answer within {self._patience:g} s")
            time.sleep(LOOK_SECONDS)
        self._find_process(rank)
        heard: Content = json.loads(self._ask(lambda: self._store.get(key)))
        return heard

    def _find_process(self, rank: int) -> None:
        """Of a rank that was heard: the first that it says is which process it is."""
        if rank not in self._processes:
            told = self._ask(lambda: self._store.get(f"process/{rank}"))
            node, pid = map(int, told.split())
            is_here = node == self._place.node and is_sibling(pid)
            self._processes[rank] = pid if is_here else None

    def _has_ended(self, rank: int) -> bool:
        pid = self._processes.get(rank)
        return pid is not None and not is_sibling(pid)

    def _ask(self, work: Callable[[], Answer]) -> Answer:
        answers = self._questions.ask(work)
        if not answers:
            raise CouldNotOpen("the store of the job is gone: rank 0 has ended or is out of reach")
        return answers[0]


def _gone(rank: int) -> str:
    return f"rank {rank} is gone: its process has ended"


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
