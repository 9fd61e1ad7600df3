"""What breaks a rank on purpose? Python runs this first in every process that has it on its path.

FAULT is "kind rank bytes": in the process of that rank, the first timed all-reduce of so many
bytes does the thing.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

# How often a size passes before the fault: its warm-ups (5) and its first check.
CALLS_BEFORE = 6


def _torchrun() -> int:
    fields = Path(f"/proc/{os.getppid()}/stat").read_text().rpartition(")")[2].split()
    return int(fields[1])


def _exhaust_memory(buffer: Any) -> None:
    import resource

    import torch

    mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (mapped, mapped))
    torch.ones(2**28)


def _corrupt(buffer: Any) -> None:
    buffer[7] += 1


def _send(number: signal.Signals, find: Callable[[], int]) -> Callable[[Any], None]:
    def send(buffer: Any) -> None:
        os.kill(find(), number)
        if number == signal.SIGINT:
            signal.pause()  # or all would be done before anybody looks

    return send


FAULTS: dict[str, Callable[[Any], None]] = {
    "kill": _send(signal.SIGKILL, os.getpid),
    "stop": _send(signal.SIGSTOP, os.getpid),
    "kill supervisor": _send(signal.SIGKILL, os.getppid),
    "stop supervisor": _send(signal.SIGSTOP, os.getppid),
    "interrupt supervisor": _send(signal.SIGINT, os.getppid),
    "interrupt torchrun": _send(signal.SIGINT, _torchrun),
    "memory": _exhaust_memory,
    "corrupt": _corrupt,
}


def _arm(fault: Callable[[Any], None], nbytes: int) -> None:
    import torch.distributed as dist

    reduce = dist.all_reduce
    calls = 0

    def all_reduce(buffer: Any, *words: Any, **options: Any) -> Any:
        nonlocal calls
        result = reduce(buffer, *words, **options)
        if buffer.numel() * buffer.element_size() == nbytes:
            calls += 1
            if calls == CALLS_BEFORE:
                fault(buffer)
        return result

    dist.all_reduce = all_reduce  # type: ignore[assignment]


if "FAULT" in os.environ and "diagnose.measure.ranks.job.member" in sys.orig_argv:
    _kind, _rank, _nbytes = os.environ["FAULT"].rsplit(" ", 2)
    if os.environ["RANK"] == _rank:
        _arm(FAULTS[_kind], int(_nbytes))
