"""What breaks a rank on purpose? Python runs this first in every process that has it on its path.

FAULT is "kind rank bytes": in the process of that rank, the first timed all-reduce of so many
bytes does the thing. "version" acts before the program begins.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

# How often a size passes before the fault: its warm-ups (5) and its first check.
CALLS_BEFORE = 6


def _parent_of(pid: int) -> int:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[1])


def _exhaust_memory() -> None:
    import resource

    import torch

    mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (mapped, mapped))
    torch.ones(2**28)


def _do(kind: str, buffer: Any) -> None:
    import signal
    import time

    if kind == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif kind == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif kind == "kill supervisor":
        os.kill(os.getppid(), signal.SIGKILL)
    elif kind == "stop supervisor":
        os.kill(os.getppid(), signal.SIGSTOP)
    elif kind == "interrupt torchrun":
        os.kill(_parent_of(os.getppid()), signal.SIGINT)
        time.sleep(1000)  # or all would be done before anybody looks
    elif kind == "interrupt supervisor":
        os.kill(os.getppid(), signal.SIGINT)
        time.sleep(1000)
    elif kind == "sleep":
        time.sleep(1000)
    elif kind == "memory":
        _exhaust_memory()
    elif kind == "corrupt":
        buffer[7] += 1


def _arm(kind: str, nbytes: int) -> None:
    import torch
    import torch.distributed as dist

    if kind == "version":
        torch.__version__ = torch.__version__.__class__("9.9.9")
        return
    reduce = dist.all_reduce
    calls = 0

    def all_reduce(buffer: Any, *words: Any, **options: Any) -> Any:
        nonlocal calls
        result = reduce(buffer, *words, **options)
        if buffer.numel() * buffer.element_size() == nbytes:
            calls += 1
            if calls == CALLS_BEFORE:
                _do(kind, buffer)
        return result

    dist.all_reduce = all_reduce  # type: ignore[assignment]


def _is_member() -> bool:
    return "diagnose.measure.ranks.job.member" in sys.orig_argv


if "FAULT" in os.environ and _is_member():
    _kind, _rank, _nbytes = os.environ["FAULT"].rsplit(" ", 2)
    if os.environ["RANK"] == _rank:
        _arm(_kind, int(_nbytes))
