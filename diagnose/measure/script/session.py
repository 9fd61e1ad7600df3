"""How does one run of somebody's script go, from its first line to what is known about it?"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from diagnose.measure.script.passes import Passes
from diagnose.measure.script.patches import Patches
from diagnose.measure.script.plan import Timetable
from diagnose.measure.script.program import End, Enough, run_program
from diagnose.measure.script.ranks import Ranks
from diagnose.measure.script.record import (
    build_record,
    own_times,
    why_incomplete,
    with_ceilings,
)
from diagnose.measure.script.spawned import Spawned
from diagnose.measure.script.watch.compiled import describe_compiler
from diagnose.measure.script.watch.seen import Picture
from diagnose.records.header import Header
from diagnose.records.script import Mode, Options, ScriptRecord

# Enough for a process of the script's to end by itself once it is asked to.
LONGEST_GOODBYE_SECONDS = 3.0
WATCHED = "only watched: nothing was tried, and every gain is an upper bound of what a fix saves"


class Session:
    """Runs the script and hands its record to `conclude`, once, on rank 0."""

    def __init__(
        self,
        script: Path,
        open_header: Callable[[], Header],
        options: Options,
        conclude: Callable[[ScriptRecord], None],
        show: Callable[[str], None] | None = None,
    ) -> None:
        self._script = script
        self._home = script.absolute()  # the script may change the directory
        self._arguments: Sequence[str] = ()
        self._open_header = open_header
        self._options = options
        self._hand_over = conclude
        self._process = os.getpid()
        self._told = False
        self._ranks = Ranks()
        self._patches = Patches()
        timetable = Timetable(options, self._ranks)
        self._passes = Passes(self._patches, timetable, self._tell_while_it_runs, self._leave, show)

        sources = self._passes.instruments.sources
        self._spawned = Spawned(script, options, sources, type(self))

    def run(self, arguments: Sequence[str], module: str = "") -> End:
        """The script itself; `module` is its name where it is run as `python -m` does."""
        self._arguments = arguments
        self._spawned.watch(self._patches)
        try:
            return self._observe(
                lambda: run_program(self._script, arguments, self._suspected, module)
            )
        finally:
            if self._is_here():
                self._spawned.close()

    def call(self, function: Callable[..., Any], args: Any, kwargs: Any) -> tuple[Any, bool]:
        """What a process of the script's was started for, and whether it was stopped by us.

        Its errors go where they would go.
        """
        results: list[Any] = []
        errors: list[BaseException] = []

        def call() -> End:
            try:
                results.append(function(*args, **kwargs))
            except Enough:
                return End(0, stopped=True)
            except BaseException as error:
                if self._suspected(error):
                    return End(0, stopped=True)
                errors.append(error)
                return End(1, error="" if isinstance(error, SystemExit) else type(error).__name__)
            return End(0)

        end = self._observe(call)
        if errors:
            raise errors[0]
        return (results[0] if results else None), end.stopped

    def _observe(self, run: Callable[[], End]) -> End:
        with self.watching():
            end = run()
        if not self._is_here():
            return end
        ended = "it was interrupted" if end.interrupted else f"the script ended (code {end.code})"
        trouble = f"raised {end.error}" if end.error else ""
        if self._ranks.called_off:
            trouble, end = "was told to end (SIGTERM)", replace(end, code=128 + signal.SIGTERM)
        try:
            self.tell(ended, trouble)
        finally:
            if end.stopped:
                _end_processes()
        if end.stopped and _threads_left():
            self._leave()
        return end

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Steps that are made meanwhile are seen; nothing of that is left afterwards."""
        try:
            self._patches.put(os, "_exit", self._concluding)
            self._passes.start()
            yield
        finally:
            try:
                self._close()
            finally:
                self._close()  # Ctrl-C may have come just before it

    def tell(self, ended: str, trouble: str = "", *, goes_on: bool = False) -> None:
        """Hand over what is known. What runs after it must find this process as it was."""
        if self._told:
            return
        self._told = True
        picture = Picture(self._passes.seen, self._passes.instruments)
        handed = self._spawned.read() if not picture.seen.steps else None
        if handed is not None:
            self._hand_over(replace(handed, header=self._open_header()))
            return
        with self._ranks.hearing_calls_off():
            times = own_times(picture, self._ranks.rank)
            failed = bool(trouble or picture.seen.failed)
            ranks = self._ranks.gather(times, trouble, in_haste=failed)
            if not self._ranks.is_reporter():
                return
            # Only now: before its first line the script has not chosen its devices yet.
            header = self._open_header()
            why = why_incomplete(picture, self._options, ended)
            record = build_record(picture, header, self._home, self._arguments, why, self._mode)
            if not goes_on:
                record = with_ceilings(record, picture)
            record = replace(record, ranks=ranks)
            if self._ranks.complaint and not picture.seen.failed:
                # Times of ranks that wait for one that failed are no times of steps.
                why = f"{self._ranks.complaint} after {record.steps} steps"
                record = replace(record, missing=why, sampled_steps=0)
            notes = (*record.notes, *self._notes(goes_on=goes_on))
            early = picture.seen.stage != "done" and not record.missing and not goes_on
            if early and not picture.seen.failed:
                end = f"{ended} after {record.steps} steps; more of them narrow the intervals"
                notes = (end, *notes)
            self._hand_over(replace(record, notes=notes))

    def _tell_while_it_runs(self) -> None:
        """A fault of this suite must not end a job that is only watched."""
        try:
            self.tell("the job goes on", goes_on=True)
        except Exception as error:
            print(
                f"diagnose: this tool failed ({type(error).__name__}: {error}); the job goes on",
                file=sys.stderr,
            )

    def _close(self) -> None:
        if self._is_here():
            self._passes.close()

    def _is_here(self) -> bool:
        """A process that the script has forked comes out of it too, and is none of ours."""
        return os.getpid() == self._process

    def _suspected(self, error: BaseException) -> bool:
        return self._is_here() and self._passes.suspects_itself(error)

    def _concluding(self, original: Any) -> Any:
        """`os._exit` leaves at once, past everything that could still be said."""

        def leave(status: int) -> None:
            is_main = threading.current_thread() is threading.main_thread()
            if self._is_here() and is_main and self._passes.is_open:
                self._passes.close()
                self._patches.safely(self.tell)(f"the script left by os._exit({status})")
            original(status)

        return leave

    @property
    def _mode(self) -> Mode:
        return "watch" if self._passes.watches or self._passes.seen.watched else "try"

    def _notes(self, *, goes_on: bool) -> list[str]:
        seen = self._passes.seen
        notes = []
        if seen.tried and not seen.failed and seen.stage != "done":
            notes.append("what this run computed is not the script's own result: trials changed it")
        if self._mode == "watch":
            notes.append(WATCHED)
        notes += self._ranks.notes
        if seen.failed and self._ranks.complaint:
            notes.append(f"after that {self._ranks.complaint}")
        if seen.watched or self._ranks.apart:
            what = "the trials ended early" if seen.tried else "nothing was tried"
            notes.append(f"{what} because {seen.watched or self._ranks.apart}")
        if goes_on:
            notes.append("the ceilings of this device are not measured while the job goes on")
        if seen.failed:
            tried = ", ".join(seen.tried) or "none yet, a step was being mapped"
            notes.append(
                f"the script failed with {seen.failed} after these trials: {tried}. That may be "
                f"this tool's doing; everything was undone. `diagnose watch {self._script.name}` "
                "changes nothing and shows whether the error is the script's own"
            )
        notes += self._passes.instruments.describe_steps(seen.typical_seconds)
        notes += describe_compiler()
        notes += seen.remarks
        if seen.unmapped:
            notes.append(f"no operators were counted: {seen.unmapped}")
        notes += [f"this tool failed ({each}); please report it" for each in self._patches.faults]
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
            self.tell("everything was measured")
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


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
