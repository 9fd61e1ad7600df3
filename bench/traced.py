"""How does a script get a trace? Some of its steps run under the profiler, and then it ends.

python -m bench.traced SCRIPT TRACE

A step is an update of the weights, or a call of the model where there are none.
"""

from __future__ import annotations

import runpy
import sys
import time
from collections import Counter
from pathlib import Path

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from diagnose.measure.trace.keep import kept_trace

_WARMUP, _STEPS = 3, 14
# Of a model without an update: more are no accumulation of gradients, but inference.
_CALLS = 10
# Enough of steps that run so long, and write hundreds of megabytes.
_FEWEST_STEPS, _SECONDS = 4, 2.0


class _Enough(BaseException):
    """Ends the script from inside."""


class _Steps:
    """Counted: the profiler starts with one of them and ends with another."""

    def __init__(self, path: Path) -> None:
        self.context = kept_trace(path)
        self._profiler: torch.profiler.profile | None = None
        self._seen, self._began = 0, 0.0
        self._updates = False
        self._calls: Counter[torch.nn.Module] = Counter()

    def update(self, *_: object) -> None:
        self._updates = True
        self._count()

    def call(self, module: torch.nn.Module, *_: object) -> None:
        """The module that is called first is outermost."""
        if not self._updates and module is next(iter(self._calls), module):
            self._calls[module] += 1
            if self._calls[module] > _CALLS:
                self._count()

    def _count(self) -> None:
        self._seen += 1
        if self._profiler is not None:
            self._profiler.step()
        if self._seen == _WARMUP:
            self._profiler = self.context.__enter__()
            self._began = time.perf_counter()
        traced = self._seen - _WARMUP
        is_long = traced >= _FEWEST_STEPS and time.perf_counter() - self._began > _SECONDS
        if traced >= _STEPS or is_long:
            raise _Enough


def main(script: Path, path: Path) -> None:
    steps = _Steps(path)
    register_optimizer_step_post_hook(steps.update)
    torch.nn.modules.module.register_module_forward_pre_hook(steps.call)
    sys.argv = [str(script)]
    sys.path.insert(0, str(script.parent))
    try:
        runpy.run_path(str(script), run_name="__main__")
    except _Enough:
        pass
    finally:
        steps.context.__exit__(None, None, None)


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve())
