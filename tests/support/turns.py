"""How does a test get the machine to itself? Every test takes a turn; one marked `alone` waits
until the other processes of the test run are between two tests, and keeps them there.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def take_turn(*, alone: bool) -> Iterator[None]:
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID")
    if run is None:  # a single process has the machine to itself
        yield
        return
    place = Path(tempfile.gettempdir())
    with (
        (place / f"diagnose-tests-{run}.door").open("w") as door,
        (place / f"diagnose-tests-{run}.room").open("w") as room,
    ):
        # Who wants to be alone waits in the door, so that nobody else can slip in.
        fcntl.flock(door, fcntl.LOCK_EX)
        fcntl.flock(room, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        if not alone:
            fcntl.flock(door, fcntl.LOCK_UN)
        yield
