"""How does a script take turns? It runs as many steps as it is told to, and then waits.

    python -m diagnose.measure.twins.turns script.py [arguments]

stands in for `python script.py [arguments]`, also under torchrun, where rank 0 is the one that
is told. A line on standard output ends a step.
"""

from __future__ import annotations

import io
import os
import runpy
import sys
import time
from itertools import pairwise
from pathlib import Path

from diagnose.measure.process import Parent, die_with_parent


class TakesTurns(io.TextIOBase):
    """The script's standard output: counts its lines, and holds the script when its turn ends.

    Every request is a number of steps, every answer a list of their seconds.
    """

    def __init__(self, parent: Parent) -> None:
        self._parent = parent
        self._requests = parent.requests()
        self._wait_for_turn()

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        for _ in range(text.count("\n")):
            self._end_step()
        return len(text)

    def _end_step(self) -> None:
        self._ends.append(time.perf_counter())
        if len(self._ends) > self._steps:
            seconds = [later - earlier for earlier, later in pairwise(self._ends)]
            self._parent.tell("seconds", seconds)
            self._wait_for_turn()

    def _wait_for_turn(self) -> None:
        request = next(self._requests, None)
        if request is None:
            # Nobody wants more. The script must not see this as an error of its own.
            os._exit(0)
        _, self._steps = request
        self._ends = [time.perf_counter()]


def main() -> None:
    die_with_parent()
    _, script, *arguments = sys.argv
    sys.argv = [script, *arguments]
    sys.path[0] = str(Path(script).parent)
    if os.environ.get("RANK", "0") == "0":
        sys.stdout = TakesTurns(Parent())
    runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    main()
