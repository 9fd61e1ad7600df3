"""How does a test get the machine to itself? Every test takes a turn; one marked `alone` waits
until the other processes of the test run are between two tests, and keeps them there.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path


class Turns:
    """Those that one process takes."""

    def __init__(self) -> None:
        self._held: ExitStack | None = None

    @contextmanager
    def take(self, *, alone: bool, so_is_next: bool) -> Iterator[None]:
        """If the next test is to be alone too, nobody else gets a turn between the two."""
        if self._held is None:
            self._held = _wait(alone)
        try:
            yield
        finally:
            if not (alone and so_is_next):
                self._held.close()
                self._held = None


def _wait(alone: bool) -> ExitStack:
    held = ExitStack()
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID")
    if run is None:  # a single process has the machine to itself
        return held
    place = Path(tempfile.gettempdir())
    door, room = (
        held.enter_context((place / f"diagnose-tests-{run}.{name}").open("w"))
        for name in ("door", "room")
    )
    # Who wants to be alone waits in the door, so that nobody else can slip in.
    fcntl.flock(door, fcntl.LOCK_EX)
    fcntl.flock(room, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
    if not alone:
        fcntl.flock(door, fcntl.LOCK_UN)
    return held
