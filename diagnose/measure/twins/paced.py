"""How long is each step of a script that may only run as many as it is told to, and then waits?

    python -m diagnose.measure.twins.paced SOCKET script.py [arguments]

stands in for `python script.py [arguments]`, also under torchrun, where rank 0 is the one that
is told. A line on standard output ends a step.
"""

from __future__ import annotations

import io
import json
import os
import runpy
import socket
import sys
import time
from pathlib import Path

from diagnose.measure.process import die_with_parent


class Pacer(io.TextIOBase):
    """The script's standard output: counts its lines, and holds the script when it has done enough.

    Every order is a number of steps on a line, every answer a list of their seconds.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._orders = connection.makefile("r", encoding="ascii")
        self._answers = connection.makefile("w", encoding="ascii")
        self._wait_for_order()

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        for _ in range(text.count("\n")):
            self._end_step()
        return len(text)

    def _end_step(self) -> None:
        self._ends.append(time.perf_counter())
        if len(self._ends) > self._ordered:
            seconds = [
                later - earlier for earlier, later in zip(self._ends, self._ends[1:], strict=False)
            ]
            self._answers.write(json.dumps(seconds) + "\n")
            self._answers.flush()
            self._wait_for_order()

    def _wait_for_order(self) -> None:
        order = self._orders.readline()
        if not order:
            # Nobody wants more. The script must not see this as an error of its own.
            os._exit(0)
        self._ordered = int(order)
        self._ends = [time.perf_counter()]


def main() -> None:
    die_with_parent()
    path, script, *arguments = sys.argv[1:]
    sys.argv = [script, *arguments]
    sys.path[0] = str(Path(script).parent)
    if os.environ.get("RANK", "0") == "0":
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(path)
        sys.stdout = Pacer(connection)
    runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    main()
