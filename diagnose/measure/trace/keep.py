"""How is a trace made? torch.profiler around a few steps, for `trace` to read."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.profiler import ProfilerActivity, profile, supported_activities

# Of a script that is only run to be traced.
_WARMUP, _STEPS = 3, 14


@contextmanager
def kept_trace(path: Path) -> Iterator[profile]:
    """Profile what runs inside, with lines and memory, and write the trace to `path`.

    Call `step()` of what it gives after each step; without that, steps are found by the
    optimizer's marks.
    """
    kinds = supported_activities() - {ProfilerActivity.CPU}  # type: ignore[no-untyped-call]
    profiler = profile(
        activities=[ProfilerActivity.CPU, *kinds],
        record_shapes=True,
        with_stack=True,
        profile_memory=True,
    )
    profiler.start()
    try:
        yield profiler
    finally:
        profiler.stop()
        profiler.export_chrome_trace(str(path))


class _Enough(BaseException):
    """Ends a script from inside."""


def trace_script(script: Path, path: Path) -> None:
    """Some steps of a script, which ends then; a step is an update, or a call of a model."""
    seen = 0
    context = kept_trace(path)
    calls: list[object] = []

    def count(*_: object) -> None:
        nonlocal seen
        seen += 1
        if seen == _WARMUP:
            context.__enter__()
        elif seen > _WARMUP + _STEPS:
            raise _Enough

    def call(module: torch.nn.Module, *_: object) -> None:
        """Without updates the outermost call of a model is a step."""
        calls[:] = calls or [module]
        if module is calls[0] and not updates:
            count()

    updates: list[object] = []

    def update(*_: object) -> None:
        nonlocal seen
        if not updates:
            updates.append(True)
            seen = min(seen, _WARMUP - 1)
        count()

    register_optimizer_step_post_hook(update)
    torch.nn.modules.module.register_module_forward_hook(call)
    sys.argv = [str(script)]
    sys.path.insert(0, str(script.resolve().parent))
    try:
        runpy.run_path(str(script), run_name="__main__")
    except _Enough:
        pass
    finally:
        context.__exit__(None, None, None)


if __name__ == "__main__":
    trace_script(Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve())
