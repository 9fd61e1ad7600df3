"""How does one run of somebody's script go, from its first line to what is known about it?"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from diagnose.findings import ScriptRecord, Wanted
from diagnose.measure.script.observer import Observer
from diagnose.measure.script.program import End, run_program
from diagnose.measure.script.ranks import Ranks
from diagnose.measure.script.record import build_record, own_times


class Session:
    """Runs the script and hands its record to `tell`, on rank 0."""

    def __init__(self, script: Path, wanted: Wanted, tell: Callable[[ScriptRecord], None]) -> None:
        self._script = script
        self._tell = tell
        self._ranks = Ranks()
        self._observer = Observer(wanted, self._ranks.count, self._ranks.agree, self._leave)

    def run(self, arguments: Sequence[str]) -> End:
        self._observer.start()
        try:
            end = run_program(self._script, arguments, self._observer.caused)
        finally:
            self._observer.close()
        ended = "it was interrupted" if end.interrupted else f"the script ended (code {end.code})"
        self._conclude(ended)
        if end.stopped and _threads_left():
            self._leave()
        return end

    def _conclude(self, ended: str) -> None:
        ranks = self._ranks.gather(own_times(self._observer, self._ranks.rank))
        if self._ranks.rank == 0:
            self._tell(build_record(self._observer, self._script, ended, ranks))

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


def _threads_left() -> bool:
    main = threading.main_thread()
    return any(each is not main and not each.daemon for each in threading.enumerate())
