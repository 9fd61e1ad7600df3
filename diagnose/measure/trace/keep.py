"""How is a trace made? torch.profiler around a few steps, for `trace` to read."""

from __future__ import annotations

import gzip
import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerAction, ProfilerActivity, profile, supported_activities

from diagnose.measure.trace.stream import Event

# A wait that begins so soon after a copy was launched is that copy's.
_AT_ONCE_SECONDS = 50e-6

_MOST_QUEUED = 4096


@contextmanager
def kept_trace(
    path: Path,
    *,
    lines: bool = True,
    memory: bool = True,
    wanted: Callable[[], bool] = lambda: True,
) -> Iterator[profile]:
    """Profile what runs inside, with lines and memory, and write the trace to `path`.

    Call `step()` of what it gives after each step. A device that no profiler sees but that keeps
    a log of its own (`kernel_log`) is added from that. Nothing is written of what is not `wanted`
    in the end.
    """
    kinds = supported_activities() - {ProfilerActivity.CPU}  # type: ignore[no-untyped-call]
    module: Any = _logging_device()
    # What was launched before may still run.
    first = max(0, module.kernel_count() - _MOST_QUEUED) if module is not None else 0
    began = time.perf_counter()
    profiler = profile(
        activities=[ProfilerActivity.CPU, *kinds],
        schedule=lambda step: ProfilerAction.RECORD,  # without one it marks no steps
        record_shapes=memory,
        with_stack=lines,
        profile_memory=memory,
    )
    profiler.start()
    try:
        yield profiler
    finally:
        profiler.stop()
        if wanted():
            profiler.export_chrome_trace(str(path))
        if module is not None and wanted():
            module.synchronize()
            running = [each for each in module.kernel_log(first) if each.end > began]
            _add_log(path, running, module.wait_log(began), began, module)


def _logging_device() -> object | None:
    if not torch.accelerator.is_available():
        return None
    kind = torch.accelerator.current_accelerator()
    module = torch.get_device_module(kind)
    has_log = hasattr(module, "kernel_log") and getattr(module, "is_simulated", False)
    return module if has_log else None


def _add_log(
    path: Path, kernels: Sequence[Any], waits: Sequence[Any], began: float, module: Any
) -> None:
    unpacked: Any = gzip.open if path.suffix == ".gz" else open
    with unpacked(path, "rt", encoding="utf-8") as file:
        trace = json.load(file)
    # A profiler counts from a moment of the wall clock, the log from one of the steady clock.
    between = time.time_ns() - time.perf_counter_ns()
    zero = (trace.get("baseTimeNanoseconds", 0) - between) / 1e9
    trace["traceEvents"] += log_events(kernels, waits, began, zero)
    name = module.get_device_properties().name
    trace["deviceProperties"] = [{"id": 0, "name": name, "simulated": True}]
    with unpacked(path, "wt", encoding="utf-8") as file:
        file.write(json.dumps(trace))  # many times as fast as dump()


def log_events(
    kernels: Sequence[Any], waits: Sequence[Any], began: float = 0.0, zero: float = 0.0
) -> Iterator[Event]:
    """A device's own log as a profiler would have written it, in microseconds since `zero`.

    Launches before the profiler `began` are unknown to it.

    A kernel has number, name, kind, device, stream, thread, and when it was launched,
    started and ended; a wait of the host for the device has start, end and thread.
    """
    last: dict[int, Any] = {}
    after: dict[int, Any] = {}
    # Each wait behind the launch that came last in its thread.
    moments = [(each.launched, 0, each) for each in kernels] + [(w.start, 1, w) for w in waits]
    for at, is_wait, each in sorted(moments, key=lambda moment: moment[:2]):
        if not is_wait:
            last[each.thread] = each
            continue
        launched = last.pop(each.thread, None)
        soon = launched is not None and at - launched.launched < _AT_ONCE_SECONDS
        if soon and launched.kind == "to device":
            after[launched.number] = each  # CUDA holds the host inside of this call
        else:
            yield _on_host("StreamSynchronize", each.thread, each.start, each.end, zero, {})
    for each in kernels:
        is_copy = each.kind in ("to device", "to host")
        wait = after.get(each.number)
        link = {"correlation": each.number}
        call = "MemcpyAsync" if is_copy else "LaunchKernel"
        until = wait.end if wait is not None else each.launched
        if each.launched >= began:
            yield _on_host(call, each.thread, each.launched, until, zero, link)
        place = {"device": each.device, "stream": each.stream}
        yield {
            "ph": "X",
            "cat": "gpu_memcpy" if is_copy else "kernel",
            "name": f"nccl:{each.name}" if each.kind == "collective" else each.name,
            "pid": each.device,
            "tid": each.stream,
            "ts": (each.start - zero) * 1e6,
            "dur": (each.end - each.start) * 1e6,
            "args": {**place, **link},
        }


def _on_host(
    name: str, thread: int, start: float, end: float, zero: float, args: dict[str, Any]
) -> Event:
    return {
        "ph": "X",
        "cat": "privateuse1_runtime",
        "name": f"device{name}",
        "pid": os.getpid(),
        "tid": thread,
        "ts": (start - zero) * 1e6,
        "dur": (end - start) * 1e6,
        "args": args,
    }
