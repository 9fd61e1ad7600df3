"""How does one run of somebody's script go, from its first line to what is known about it?"""

from __future__ import annotations

import multiprocessing
import os
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from diagnose.measure.script.passes import Passes
from diagnose.measure.script.patches import Patches
from diagnose.measure.script.plan import Timetable
from diagnose.measure.script.program import End, run_program
from diagnose.measure.script.ranks import Ranks
from diagnose.measure.script.record import build_record, own_times, why_incomplete
from diagnose.measure.script.watch.seen import Picture
from diagnose.records.header import Header
from diagnose.records.script import Options, ScriptRecord

# Enough for a process of the script's to end by itself once it is asked to.
LONGEST_GOODBYE_SECONDS = 3.0
COMPILED = (
    "torch.compile is at work: operators and FLOPs were counted in steps that ran without it, so "
    "a line may need fewer than reported"
)


class Session:
    """Runs the script and hands its record to `conclude`, on rank 0."""

    def __init__(
        self,
        script: Path,
        open_header: Callable[[], Header],
        options: Options,
        conclude: Callable[[ScriptRecord], None],
    ) -> None:
        self._script = script
        self._open_header = open_header
        self._options = options
        self._hand_over = conclude
        self._process = os.getpid()
        self._ranks = Ranks()
        self._patches = Patches()
        timetable = Timetable(options, self._ranks.count, self._ranks.agree)
        self._passes = Passes(self._patches, timetable, self._leave)

    def run(self, arguments: Sequence[str]) -> End:
        self._patches.put(os, "_exit", self._concluding)
        self._passes.start()
        try:
            end = run_program(self._script, arguments, self._caused)
        finally:
            if self._is_here():
                self._passes.close()
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
        return self._is_here() and self._ranks.count == 1 and self._passes.caused(error)

    def _concluding(self, original: Any) -> Any:
        """`os._exit` leaves at once, past everything that could still be said."""

        def leave(status: int) -> None:
            is_main = threading.current_thread() is threading.main_thread()
            if self._is_here() and is_main and self._passes.is_open:
                self._passes.close()
                self._conclude(f"the script left by os._exit({status})")
            original(status)

        return leave

    def _conclude(self, ended: str, trouble: str = "") -> None:
        picture = Picture(self._passes.seen, self._passes.instruments)
        with self._ranks.hearing_calls_off():
            ranks = self._ranks.gather(own_times(picture, self._ranks.rank), trouble)
            if not self._ranks.is_reporter():
                return
            # Only now: before its first line the script has not chosen its devices yet.
            header = self._open_header()
            why = why_incomplete(picture, self._options, ended)
            record = build_record(picture, header, self._script, why)
            record = replace(record, ranks=ranks)
            if self._ranks.complaint:
                # Times of ranks that wait for one that failed are no times of steps.
                why = f"{self._ranks.complaint} after {record.steps} steps"
                record = replace(record, missing=why, sampled_steps=0)
            self._hand_over(replace(record, notes=(*record.notes, *self._notes())))

    def _notes(self) -> list[str]:
        notes = [COMPILED] if _has_compiled() else []
        if self._patches.left_alone:
            names = ", ".join(self._patches.left_alone)
            notes.append(f"the script replaced {names} during the run; its version was kept")
        return notes

    def _leave(self) -> None:
        """End the process where the script does not let it end: it holds every exception, or its
        own threads would run for ever.
        """
        if self._passes.is_open:
            self._passes.close()
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
