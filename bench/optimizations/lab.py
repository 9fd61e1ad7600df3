"""What do all experiments share? The words of the contract, and how a trial is opened."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache

import torch
from torch import Tensor

from diagnose.workload import Fact, Lab, OpenTrial, Trial

# The first step compiles, the second may compile again for what the first has changed.
COMPILING_STEPS = 2
COMPILED_STEPS = 3

Changes = Mapping[str, Fact]  # settings of a job that differ from its base
Outcome = Callable[[Lab], Mapping[str, Tensor]]
Facts = Callable[[Lab], Mapping[str, Fact]]


def opened(make: Callable[[Lab], Trial]) -> OpenTrial:
    """A trial that has nothing to close."""

    @contextmanager
    def trial(lab: Lab) -> Iterator[Trial]:
        yield make(lab)

    return trial


def compiler_obstacle(lab: Lab) -> str:
    if lab.device.type == "cpu" and not (shutil.which("g++") or shutil.which("c++")):
        return (
            "torch.compile needs a C++ compiler on the CPU, and there is none; install g++, or "
            "train without it"
        )
    return ""


def watch_compiling(step: Callable[[], object], name: str) -> Mapping[str, Fact]:
    """What torch.compile does in the first steps, from an empty cache, and how long that takes."""
    # A cache of an earlier run would hide what a user waits for.
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = _fresh_cache(name)
    torch.compiler.reset()
    torch._dynamo.utils.counters.clear()
    torch._dynamo.utils.clear_compilation_metrics()
    seconds = []
    for _ in range(COMPILING_STEPS + COMPILED_STEPS):
        began = time.monotonic()
        step()
        seconds.append(time.monotonic() - began)
    counters = torch._dynamo.utils.counters
    compiled = torch._dynamo.utils.get_compilation_metrics()
    again = [each for each in compiled if not str(each.compile_id).endswith("/0")]
    usual = min(seconds[COMPILING_STEPS:])
    waited = sum(each - usual for each in seconds[:COMPILING_STEPS])
    return {
        "took_effect": counters["stats"]["unique_graphs"] > 0,
        "graphs": counters["stats"]["unique_graphs"],
        "graph_breaks": sum(counters["graph_break"].values()),
        "recompiles": len(again),
        "compile_seconds": round(max(0.0, waited), 3),
    }


@cache
def _fresh_cache(name: str) -> str:
    """A directory for each, for as long as this process measures."""
    directory = tempfile.mkdtemp(prefix=f"inductor-{name}-")
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    return directory
