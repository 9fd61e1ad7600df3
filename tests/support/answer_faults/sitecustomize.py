"""What kills or stalls a rank on purpose? Python runs this first where it is on the path.

KILL is "rank number": the process of that rank ends itself at its so many-th barrier. With STALL
it stays there, for longer than any test waits.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Any


def _arm(number: int, fault: Callable[[], object]) -> None:
    import torch.distributed as dist

    barrier = dist.barrier
    calls = 0

    def count_barrier(*words: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == number:
            fault()
        return barrier(*words, **options)

    dist.barrier = count_barrier


_FAULTS: dict[str, Callable[[], object]] = {
    "KILL": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "STALL": lambda: time.sleep(3600),
}
for _name, _fault in _FAULTS.items():
    if _name in os.environ and "diagnose.measure.ranks.job.member" in sys.orig_argv:
        _rank, _number = os.environ[_name].split()
        if os.environ["RANK"] == _rank:
            _arm(int(_number), _fault)
