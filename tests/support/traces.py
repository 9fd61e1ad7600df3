"""Traces made by hand, with known truth: a host that launches, a device that runs."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

Event = dict[str, Any]
HOST = {"pid": 7, "tid": 7}
DEVICE = {"pid": 0, "tid": 1}


def x(category: str, name: str, at: float, lasts: float, **args: Any) -> Event:
    """A complete event of the host, in microseconds."""
    return {"ph": "X", "cat": category, "name": name, "ts": at, "dur": lasts, **HOST, "args": args}


def kernel(name: str, at: float, lasts: float, link: int, category: str = "kernel") -> Event:
    args = {"device": 0, "stream": 1, "correlation": link}
    return {**x(category, name, at, lasts, **args), **DEVICE}


def loading_steps(steps: int = 4, loader: float = 600.0, names: str = "new") -> list[Event]:
    """Each step: the loader, then one launch of 20 µs whose kernel takes 300 µs, then Python."""
    cats = ("cpu_op", "cuda_runtime", "kernel", "user_annotation")
    if names == "old":
        cats = ("Operator", "Runtime", "Kernel", "Operator")
    call = "hipLaunchKernel" if names == "hip" else "cudaLaunchKernel"
    events: list[Event] = []
    for step in range(steps):
        at = 1000.0 * step
        note = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
        events += [
            x(cats[3], f"ProfilerStep#{step}", at, 1000.0),
            x("python_function", "train.py(12): train", at, 1000.0),
            x(cats[3], note, at, loader),
            x(cats[0], "aten::mm", at + loader, 40.0, **{"Sequence number": step}),
            x(cats[1], call, at + loader + 10, 20.0, correlation=step + 1),
            kernel("gemm", at + loader + 50, 300.0, step + 1, cats[2]),
        ]
    return events


def collective_steps(late: float, offset: float = 0.0, steps: int = 6) -> list[Event]:
    """A rank that reaches the exchange of each step so much later; all end it together."""
    events: list[Event] = []
    for step in range(steps):
        at = 1000.0 * step + offset
        events += [
            x("user_annotation", f"ProfilerStep#{step}", at, 1000.0),
            x("cpu_op", "aten::mm", at, 100 + late),
            x("cuda_runtime", "cudaLaunchKernel", at + late, 5.0, correlation=2 * step + 1),
            kernel("gemm", at + 10, 80 + late, 2 * step + 1),
            x("cuda_runtime", "cudaLaunchKernel", at + 100 + late, 5.0, correlation=2 * step + 2),
            kernel("ncclDevKernel_AllReduce", at + 110 + late, 790 - late, 2 * step + 2),
        ]
    return events


def write(path: Path, events: list[Event], **head: Any) -> Path:
    text = json.dumps({**head, "traceEvents": events}, indent=1)
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(text.encode()))
    else:
        path.write_text(text, encoding="utf-8")
    return path
