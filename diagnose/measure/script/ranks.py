"""How do the ranks of a distributed script keep together, and how do they tell one story?

They are those of the process group that the script made, whatever started them, and they talk
through its store: a group of our own would have to be made by all, and one rank may run without
us. Rank 0 decides, because clocks differ and steps do not. A decision is written once: by rank 0,
or by the first that has waited too long for it, and then all of them only watch. A rank that
fails or dies is named by the lowest of those that are left.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import psutil
import torch.distributed as dist
from torch.distributed import distributed_c10d

from diagnose.measure.script.patches import Patches
from diagnose.measure.script.program import Enough
from diagnose.records.codec import from_dict, to_dict
from diagnose.records.script import RankTimes

# For the first answer of all; a rank that runs without us never gives one.
LONGEST_GREETING_SECONDS = 20.0
# A rank that is behind is still in the same step.
LONGEST_STEP_SECONDS = 120.0
# After the last step the others only have to write their times down.
LONGEST_FAREWELL_SECONDS = 20.0
# The others of a rank that failed wait for it in an exchange, until its process has ended.
FAREWELL_AFTER_FAILURE_SECONDS = 5.0
LONGEST_GOODBYE_SECONDS = 2.0
POLL_SECONDS = 0.002
# A job of hundreds that fails everywhere need not be listed.
MOST_NAMED = 4
SILENT = "did not answer"


class Ranks:
    """This process among the others; alone it agrees with itself."""

    def __init__(self) -> None:
        self.rank, self.count = 0, 1
        self.apart = ""  # why the ranks only watch, each for itself
        self.notes: list[str] = []
        self.called_off = False
        self._default: Any = None  # the store that the script's process group has now
        self._store: Any = None  # our part of it
        self._meetings = Counter[str]()
        self._topic, self._decisions = "", 0
        self._homes: dict[int, tuple[str, int]] = {}  # machine and process of those heard of
        self._strangers = False  # some ranks may run without us
        self._members = [0]  # those that are watched
        self._by_gloo = False
        self._troubles: dict[int, str] = {}

    @property
    def together(self) -> bool:
        """Whether there are several, and all of them decide as one."""
        return self.count > 1 and not self.apart

    @property
    def complaint(self) -> str:
        """Which ranks failed, and how."""
        named = [f"rank {rank} {what}" for rank, what in sorted(self._troubles.items())]
        more = [f"and {len(named) - MOST_NAMED} more"] if len(named) > MOST_NAMED else []
        return ", ".join(named[:MOST_NAMED] + more)

    # --- between two steps ---

    def look(self) -> bool:
        """Whether the script has made another process group that several ranks share."""
        if not dist.is_available() or not dist.is_initialized():
            return False
        store = distributed_c10d._get_default_store()
        if store is self._default or dist.get_world_size() == 1:
            return False
        self._default = store
        self.rank, self.count = dist.get_rank(), dist.get_world_size()
        self.apart = "" if store is not None else "their process group has no store to agree over"
        self._store = distributed_c10d.PrefixStore("diagnose", store) if store is not None else None
        self._homes = {self.rank: (_machine(), os.getpid())}
        self._members = list(range(self.count))
        self._by_gloo = dist.get_backend() == "gloo"
        self._note_contradictions()
        return True

    def meet(self, kind: str, patches: Patches) -> None:
        """Find out whether all ranks are watched, and take the same steps."""
        if self._store is None:
            return
        self._hear_signals(patches)
        self._meetings[kind] += 1
        self._topic, self._decisions, self.apart = f"{kind} {self._meetings[kind]}", 0, ""
        self._store.set(f"hello/{self.rank}", "")
        homes = self.decide(self._homes[self.rank], list, LONGEST_GREETING_SECONDS)
        if self.together:
            self._homes = {rank: (home[0], home[1]) for rank, home in enumerate(homes)}
            return
        self._strangers = True
        self.apart += (
            "; ranks that a launcher starts again by itself run without diagnose: start all with "
            "`torchrun --nproc-per-node=N -m diagnose script`"
        )

    def agree(self, value: Any) -> Any:
        """What rank 0 says."""
        return self.decide(None, lambda _: value, waits=False)

    def decide(
        self,
        answer: Any,
        choose: Callable[[list[Any]], Any],
        seconds: float = LONGEST_STEP_SECONDS,
        waits: bool = True,
    ) -> Any:
        """What rank 0 makes of everybody's answers; each of its own once they are apart."""
        if not self.together:
            return choose([answer])
        key = f"{self._topic}/{self._decisions}"
        self._decisions += 1
        try:
            if self.rank:
                said = self._hear(key, answer, seconds)
            else:
                said = self._say(key, self._choose(key, answer, choose, seconds, waits))
        except RuntimeError:  # whoever kept the store is gone
            said = {"apart": "the store of their process group is gone"}
        self.apart = said.get("apart", "")
        return choose([answer]) if self.apart else said["value"]

    def part(self, why: str) -> None:
        """Only watch from here on; the others hear it instead of the next decision."""
        while self.together:
            key = f"{self._topic}/{self._decisions}"
            self._decisions += 1
            try:
                self.apart = self._say(key, {"apart": why}).get("apart", "")
            except RuntimeError:
                self.apart = why

    def _choose(self, key: str, answer: Any, choose: Any, seconds: float, waits: bool) -> Any:
        answers, until = [answer], time.monotonic() + seconds
        for rank in range(1, self.count if waits else 1):
            if not self._wait(f"{key}/{rank}", until, rank):
                return {"apart": f"rank {rank} {SILENT} within {seconds:g} s"}
            answers.append(json.loads(self._store.get(f"{key}/{rank}")))
        return {"value": choose(answers)}

    def _hear(self, key: str, answer: Any, seconds: float) -> Any:
        self._store.set(f"{key}/{self.rank}", json.dumps(answer))
        # Rank 0 may come late, and then wait itself.
        if self._wait(key, time.monotonic() + 1.5 * seconds, 0):
            return json.loads(self._store.get(key))
        return self._say(key, {"apart": f"rank 0 {SILENT} within {1.5 * seconds:g} s"})

    def _say(self, key: str, message: Any) -> Any:
        """The first word counts, for all."""
        return json.loads(self._store.compare_set(key, "", json.dumps(message)))

    def _wait(self, key: str, until: float, rank: int) -> bool:
        """Asks again and again: a wait inside the store hears no signal, and keeps others out."""
        while not self._store.check([key]):
            if self.called_off or time.monotonic() > until or not self._lives(rank):
                return bool(self._store.check([key]))
            time.sleep(POLL_SECONDS)
        return True

    def _lives(self, rank: int) -> bool:
        """As far as this machine can tell."""
        machine, process = self._homes.get(rank, ("", 0))
        if machine != self._homes[self.rank][0]:
            return True
        try:
            return bool(psutil.Process(process).status() != psutil.STATUS_ZOMBIE)
        except psutil.NoSuchProcess:
            return False

    def _hear_signals(self, patches: Patches) -> None:
        """When a rank dies its launcher ends the others by a signal: there is time to say so."""
        if threading.current_thread() is not threading.main_thread():
            return
        if signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
            return
        process = os.getpid()

        def end(*_: object) -> None:
            if os.getpid() != process:  # a loader's worker has inherited this
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
                os.kill(os.getpid(), signal.SIGTERM)
                return
            self.called_off = True
            raise Enough

        def undo() -> None:
            if signal.getsignal(signal.SIGTERM) is end:
                signal.signal(signal.SIGTERM, signal.SIG_DFL)

        signal.signal(signal.SIGTERM, end)
        patches.on_undo(undo)

    def _note_contradictions(self) -> None:
        for name, true in (("WORLD_SIZE", self.count), ("RANK", self.rank)):
            told = os.environ.get(name, str(true))
            if told != str(true):
                what = f"{self.count} ranks" if name == "WORLD_SIZE" else f"this as rank {true}"
                self.notes.append(
                    f"{name}={told} in the environment, but the process group has {what}: the "
                    "process group was believed"
                )

    # --- after the last step ---

    @contextlib.contextmanager
    def hearing_calls_off(self) -> Iterator[None]:
        """While the last words are exchanged a signal only ends the waiting."""
        if self._store is None or threading.current_thread() is not threading.main_thread():
            yield
            return

        def call_off(*_: object) -> None:
            self.called_off = True

        handler = signal.signal(signal.SIGTERM, call_off)
        try:
            yield
        finally:
            signal.signal(signal.SIGTERM, handler)

    def gather(
        self, times: RankTimes, trouble: str = "", *, in_haste: bool = False
    ) -> tuple[RankTimes, ...]:
        """Every rank's times on the one that reports. `trouble` is how this rank failed.

        After a failure the others cannot answer before this process has ended.
        """
        with contextlib.suppress(RuntimeError, ValueError):
            self.look()  # it may have failed before its first step
        if self.count == 1 and os.environ.get("WORLD_SIZE", "1") != "1":
            self.notes.append(
                f"WORLD_SIZE={os.environ['WORLD_SIZE']}, but the script has made no process group "
                "of several ranks: this process was measured alone"
            )
        if self._store is None:
            return ()
        if trouble:
            self._troubles[self.rank] = trouble
        patience = FAREWELL_AFTER_FAILURE_SECONDS if in_haste else LONGEST_FAREWELL_SECONDS
        try:
            return self._exchange(times, trouble, time.monotonic() + patience)
        except RuntimeError:  # the store was kept by rank 0, and is gone with it
            self._troubles[0] = SILENT
            return ()

    def is_reporter(self) -> bool:
        """The lowest rank that is watched; where it does not answer, the lowest left as well."""
        first = self._members[0]
        if self._store is None or self.rank == first:
            return True
        if self._troubles.get(first) != SILENT:
            return False
        lower = range(first + 1, self.rank)
        # A lower one that still exchanges by gloo hears of it, and speaks, once this one has ended.
        if self._by_gloo and any(
            each in self._homes and self._lives(each) for each in range(self.rank)
        ):
            return False
        try:
            if any(self._lives(each) and self._store.check([f"times/{each}"]) for each in lower):
                return False
            return int(self._store.add("reporters", 1)) == 1
        except RuntimeError:
            return not any(map(self._lives, lower))

    def _exchange(self, times: RankTimes, trouble: str, until: float) -> tuple[RankTimes, ...]:
        message = {"times": to_dict(times), "trouble": trouble}
        self._store.set(f"times/{self.rank}", json.dumps(message))
        if self._strangers:
            greeted = [rank for rank in self._members if self._store.check([f"hello/{rank}"])]
            self._members = sorted({self.rank, *greeted})
        first = self._members[0]
        if self.rank != first:
            # One that leaves with an error has the others ended, so it waits for the first.
            if self._wait("read", until, first):
                self._store.add("left", 1)
            else:
                self._troubles[first] = SILENT
            return ()
        found = []
        for rank in self._members:
            if not self._wait(f"times/{rank}", until, rank):
                self._troubles.setdefault(rank, SILENT)
                continue
            message = json.loads(self._store.get(f"times/{rank}"))
            found.append(from_dict(RankTimes, message["times"], f"rank {rank}"))
            if message["trouble"]:
                self._troubles[rank] = message["trouble"]
        self._store.set("read", "1")
        # The store may be this process's own, and the others still have to read from it.
        until = time.monotonic() + LONGEST_GOODBYE_SECONDS
        while int(self._store.add("left", 0)) < len(found) - 1 and time.monotonic() < until:
            time.sleep(POLL_SECONDS)
        return tuple(found)


def _machine() -> str:
    """Processes with the same name for it see each other."""
    try:
        return f"{socket.gethostname()} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return socket.gethostname()
