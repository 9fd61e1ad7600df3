"""Who watches over the ranks? Starts them, hears them, and agrees with the others on the end.

Under torchrun every process is the supervisor of one rank; supervisors leave each other notes in
the job's store, so that all of them know which rank ended first, on whatever host it was.
`run_locally` does the same for all ranks of this host, without torchrun and without torch.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from diagnose.measure.process import die_with_parent
from diagnose.measure.ranks.job.ends import End, Outcome, complete
from diagnose.measure.ranks.job.rendezvous import (
    NoRendezvous,
    Place,
    Questions,
    is_sibling,
    open_rooms,
    open_store,
    read_place,
)
from diagnose.measure.ranks.job.watch import GRACE_SECONDS, Watch
from diagnose.records.codec import to_dict

if TYPE_CHECKING:
    from torch.distributed.distributed_c10d import Store

OnLine = Callable[[str, Any], None]

LOOK_SECONDS = 0.5
# Once one rank has ended, the others follow: a finished one has passed the last barrier with all,
# and after a failure the others have GRACE_SECONDS. A supervisor that says nothing then is gone.
NOTE_SECONDS = 3 * GRACE_SECONDS
_STOPS = (signal.SIGINT, signal.SIGTERM)


def supervise(
    program: str,
    request: Mapping[str, Any],
    on_line: OnLine,
    timeout: float,
    *,
    variables: Mapping[str, str] | None = None,
    attempt: str = "0",
) -> Outcome:
    """Run this process's rank of the program; returns when every rank has ended.

    `on_line(kind, content)` hears "ready" and "at" of the own rank, and what rank 0 emits on
    rank 0. All ranks must call this with the same arguments; a further call needs another
    `attempt`. `variables` are added to the environment of the rank.
    """
    place = read_place()
    if _is_under_torchrun():
        # A killed torchrun must not leave supervisors behind; like Ctrl-C, it keeps the record.
        die_with_parent(signal.SIGTERM)
    # A supervisor that keeps the store is there before its rank is.
    own = {**place.as_environment(), "TORCHELASTIC_USE_AGENT_STORE": "True"}
    order = _order(program, request, timeout, attempt)
    watch = Watch(order, {**(variables or {}), **own}, on_line)
    notes: _Notes | None = None
    # Until it is known better: `on_line` raised, or something that nobody thought of.
    end = End(place.rank, "failed", "could not keep the record", "start")
    asked_to_stop = _note_signals()
    try:
        notes = _Notes(place, attempt, timeout)
        end = _wait(watch, notes, asked_to_stop)
    except NoRendezvous as error:
        end = End(place.rank, "no rendezvous", str(error), "rendezvous")
    finally:
        # From here on nothing may disturb: the rest is short, and it is what is kept.
        for number in _STOPS:
            signal.signal(number, signal.SIG_IGN)
        watch.end()
        if notes is not None:
            notes.leave(end)
    return Outcome((end,)) if notes is None else notes.wait_for_all()


def run_locally(
    ranks: int, program: str, request: Mapping[str, Any], on_line: OnLine, timeout: float
) -> Outcome:
    """Run a program with so many ranks on this host, supervised by this process alone."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    order = _order(program, request, timeout, "0")
    watches: list[Watch] = []
    ends: dict[int, End] = {}
    with contextlib.ExitStack() as started:
        for rank in range(ranks):
            place = Place(rank, ranks, rank, ranks, 0, 1, "127.0.0.1", port, "0", False)
            hear = on_line if rank == 0 else _hear_nothing
            watches.append(Watch(order, place.as_environment(), hear))
            started.callback(watches[-1].end)
        while len(ends) < ranks:
            for watch in watches:
                if watch.rank not in ends:
                    end = watch.look(tuple(ends.values()), LOOK_SECONDS / ranks)
                    if end is not None:
                        ends[watch.rank] = end
    return complete(tuple(ends.values()), ranks)


def _hear_nothing(kind: str, content: Any) -> None: ...


def _order(
    program: str, request: Mapping[str, Any], timeout: float, attempt: str
) -> dict[str, Any]:
    return {
        "program": program,
        "request": dict(request),
        "timeout_seconds": timeout,
        "attempt": attempt,
    }


def _wait(watch: Watch, notes: _Notes, asked_to_stop: threading.Event) -> End:
    while True:
        # Asked first: what the rank said before that is still heard and kept.
        stop = asked_to_stop.is_set()
        end = watch.look(notes.read(), LOOK_SECONDS)
        if end is not None:
            return end
        if stop:
            return watch.interrupted()


class _Notes:
    """What supervisors tell each other: one note for every rank that has ended."""

    def __init__(self, place: Place, attempt: str, timeout: float) -> None:
        self._world_size = place.world_size
        self._keeps_store = place.rank == 0 and not place.has_store
        self._store = open_rooms(place, _connect(place, timeout), attempt)
        self._node = place.node
        self._questions = Questions()
        self._count = 0
        self._ends: dict[int, End] = {}
        process = f"{place.node} {os.getpid()}"
        self._questions.ask(lambda: self._store.set(f"process/{place.rank}", process))

    def read(self) -> tuple[End, ...]:
        """The ends that are known by now."""
        self._questions.ask(self._look_up)
        return tuple(self._ends.values())

    def leave(self, mine: End) -> None:
        """Tell the others how the own rank ended, if they can still be told."""
        self._ends[mine.rank] = mine
        self._questions.ask(lambda: self._post(mine))

    def wait_for_all(self) -> Outcome:
        """The outcome, once every rank has left its note or the patience is over."""
        _wait_until(lambda: len(self.read()) == self._world_size, NOTE_SECONDS)
        outcome = complete(tuple(self._ends.values()), self._world_size)
        self._questions.ask(lambda: self._end_silent_neighbours(outcome))
        self._questions.ask(lambda: self._store.add("read", 1))
        if self._keeps_store:
            _wait_until(self._all_have_read, GRACE_SECONDS)
        return outcome

    def _look_up(self) -> None:
        """One question tells whether there is news: a job may have hundreds of ranks."""
        count = int(self._store.add("ended", 0))
        if count == self._count:
            return
        for rank in set(range(self._world_size)) - set(self._ends):
            key = f"ended/{rank}"
            if self._store.check([key]):
                self._ends[rank] = End(**json.loads(self._store.get(key)))
        self._count = count

    def _post(self, end: End) -> None:
        self._store.set(f"ended/{end.rank}", json.dumps(to_dict(end)))
        self._store.add("ended", 1)

    def _end_silent_neighbours(self, outcome: Outcome) -> None:
        """torchrun waits 30 s for a supervisor that was stopped, and it cannot answer any more."""
        for end in outcome.ends:
            key = f"process/{end.rank}"
            if end.kind == "silent" and self._store.check([key]):
                node, pid = map(int, self._store.get(key).split())
                if node == self._node and _is_under_torchrun() and is_sibling(pid):
                    os.kill(pid, signal.SIGKILL)

    def _all_have_read(self) -> bool:
        return self._questions.ask(lambda: self._store.add("read", 0)) == [self._world_size]


def _wait_until(is_so: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not is_so() and time.monotonic() < deadline:
        time.sleep(0.1)


@cache
def _connect(place: Place, timeout: float) -> Store:
    """One connection for all attempts; where rank 0 keeps the store, it must outlive them all."""
    # torch's own warnings about retries would bury the one sentence that we say.
    name = "TORCH_CPP_LOG_LEVEL"
    before = os.environ.get(name)
    os.environ[name] = before or "FATAL"
    import torch.distributed  # noqa: F401 - reads the variable

    # A rank that is started later writes its own log in full: how it ended is read there.
    if before is None:
        del os.environ[name]
    return open_store(place, timeout)


def _is_under_torchrun() -> bool:
    return "TORCHELASTIC_RUN_ID" in os.environ


def _note_signals() -> threading.Event:
    """torchrun passes Ctrl-C on as SIGINT, and ends the others with SIGTERM when one has died.

    Only noted: an exception in the middle of a save would lose what is being saved.
    """
    asked_to_stop = threading.Event()
    for number in _STOPS:
        signal.signal(number, lambda *_: asked_to_stop.set())
    return asked_to_stop
