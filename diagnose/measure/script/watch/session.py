"""How does one run of somebody's script go, from its first line to what is known about it?"""

from __future__ import annotations

import multiprocessing
import os
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from diagnose.measure.script.watch.observer import Observer
from diagnose.measure.script.watch.program import End, run_program, telling_before_exit
from diagnose.measure.script.watch.ranks import Ranks
from diagnose.measure.script.watch.record import build_record, own_times
from diagnose.records.script import ScriptRecord, Wanted

# Enough for a process of the script's to end by itself once it is asked to.
LONGEST_GOODBYE_SECONDS = 3.0
COMPILED = (
    "torch.compile is at work: operators and FLOPs were counted in steps that ran without it, so "
    "that a line may ask for fewer than are told"
)


class Session:
    """Runs the script and hands its record to `tell`, on rank 0."""

    def __init__(self, script: Path, wanted: Wanted, tell: Callable[[ScriptRecord], None]) -> None:
        self._script = script
        self._tell = tell
        self._process = os.getpid()
        self._ranks = Ranks()
        self._observer = Observer(wanted, self._ranks.count, self._ranks.agree, self._leave)

    def run(self, arguments: Sequence[str]) -> End:
        self._observer.start()
        try:
            with telling_before_exit(self._tell_before_exit):
                end = run_program(self._script, arguments, self._caused)
        finally:
            if self._is_here():
                self._observer.close()
        if not self._is_here():
            return end
        ended = "it was interrupted" if end.interrupted else f"the script ended (code {end.code})"
        try:
            self._conclude(ended, f"raised {end.error}" if end.error else "")
        finally:
            if end.stopped:
                _end_processes()
        if end.stopped and _threads_left():
            self._leave()
        return end

    def _is_here(self) -> bool:
        """A process that the script has forked comes out of it too, and is none of ours."""
        return os.getpid() == self._process

    def _caused(self, error: BaseException) -> bool:
        """What is tried with several ranks breaks no script; one that loses a peer breaks."""
        return self._is_here() and self._ranks.count == 1 and self._observer.caused(error)

    def _tell_before_exit(self, code: int) -> None:
        is_main = threading.current_thread() is threading.main_thread()
        if self._is_here() and is_main and self._observer.is_open:
            self._observer.close()
            self._conclude(f"the script left by os._exit({code})")

    def _conclude(self, ended: str, trouble: str = "") -> None:
        with self._ranks.hearing_calls_off():
            ranks = self._ranks.gather(own_times(self._observer, self._ranks.rank), trouble)
            if not self._ranks.is_teller():
                return
            record = build_record(self._observer, self._script, ended, ranks)
            if self._ranks.complaint:
                # Times of ranks that wait for one that failed are no times of steps.
                why = f"{self._ranks.complaint} after {record.steps} steps"
                record = replace(record, missing=why, sampled_steps=0)
            if _has_compiled():
                record = replace(record, notes=(*record.notes, COMPILED))
            self._tell(record)

    def _leave(self) -> None:
        """End the process where the script does not let it end: it holds every exception, or its
        own threads would run for ever.
        """
        if self._observer.is_open:
            self._observer.close()
            self._conclude("everything was measured")
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


def _has_compiled() -> bool:
    """Whether torch.compile has translated anything in this process."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    return dynamo is not None and bool(dynamo.counters["frames"]["ok"])


def _threads_left() -> bool:
    main = threading.main_thread()
    return any(each is not main and not each.daemon for each in threading.enumerate())


def _end_processes() -> None:
    """The script was stopped before it could end its own processes, and Python waits for them.

    Those that Python would end by itself, such as the workers of a loader, are left to it.
    """
    left = [each for each in multiprocessing.active_children() if not each.daemon]
    for process in left:
        process.terminate()
    for process in left:
        process.join(LONGEST_GOODBYE_SECONDS)
        if process.is_alive():
            process.kill()
