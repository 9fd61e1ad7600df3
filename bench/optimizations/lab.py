"""What do all experiments share? The words of the contract, and how a trial is opened."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from torch import Tensor

from diagnose.workload import Fact, Lab, OpenTrial, Trial

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
