"""How fast are real GPUs, and how fast must the twin be to have the same ratios?

    python -m tests.support.fakegpu.calibrate FOLDER

reads the Kineto traces in FOLDER/<device>/*.json.gz and prints, for each device, what was measured
there and what follows for `device/profiles.py`. The traces in that table come from the tests of
AMD-AGI/TraceLens (inference of four models on an H100, bfloat16) and from the samples of
pytorch/kineto (training of ResNet-50 on a V100, float32).

Two scales. The host computes all results, so a launch takes the twin longer than it takes CUDA:
every duration is SLOWDOWN times what it is on the device. A small training step of the twin
launches a kernel every 13 to 22 us (median of small training steps); the traces say 16 us (lower
quartile) on the H100's host, of which the profiler that wrote them is thought to be about half.
And a test cannot afford real sizes: a tensor of the twin stands for one that is SHRINK times as
large, so rates are lower by that factor again. The ratio of a kernel's duration to the cost of its
launch is then what it is in the traces: a model of a thousandth of the size, run on the profile,
is launch-bound or compute-bound as the whole model is on the device.
"""

from __future__ import annotations

import gzip
import json
import sys
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median, quantiles
from typing import Any

SLOWDOWN = 2.0
SHRINK = 1000.0
# Below this a kernel is over before its bytes matter.
SMALL_BYTES = 65536

BYTES = {"float": 4, "c10::BFloat16": 2, "c10::Half": 2, "long int": 8, "double": 8, "Float": 4}
Event = dict[str, Any]


@dataclass(frozen=True)
class Trace:
    """One file, in microseconds: its kernels with the operator that launched each."""

    kernels: list[tuple[Event, Event]]
    copies: list[Event]
    launches: list[float]
    memory_calls: list[float]


def read(file: Path) -> Trace:
    with gzip.open(file) as stream:
        events = [e for e in json.load(stream)["traceEvents"] if e.get("ph") == "X"]
    of_kind: dict[str, list[Event]] = {}
    for event in events:
        of_kind.setdefault(str(event.get("cat")).lower(), []).append(event)
    operators = {
        event["args"].get("External id"): event
        for event in of_kind.get("cpu_op", of_kind.get("operator", []))
    }
    kernels = [
        (event, operators.get(_external(event), {"name": "", "args": {}}))
        for event in of_kind.get("kernel", [])
    ]
    calls = of_kind.get("cuda_runtime", of_kind.get("runtime", []))
    starts = sorted(
        (str(e["tid"]), e["ts"]) for e in [*calls, *of_kind.get("cuda_driver", [])]
        if "Launch" in e["name"]
    )  # fmt: skip
    return Trace(
        kernels=kernels,
        copies=of_kind.get("gpu_memcpy", of_kind.get("memcpy", [])),
        launches=[
            later[1] - earlier[1] for earlier, later in pairwise(starts) if later[0] == earlier[0]
        ],
        memory_calls=[e["dur"] for e in calls if e["name"] in ("cudaMalloc", "cudaFree")],
    )


def _external(event: Event) -> object:
    return event["args"].get("External id", event["args"].get("external id"))


def flops(operator: Event) -> float:
    shapes = operator["args"].get("Input Dims", [])
    name = operator["name"]
    if name in ("aten::mm", "aten::bmm"):
        return 2.0 * _size(shapes[0]) * int(shapes[1][-1])
    if name in ("aten::addmm", "aten::baddbmm"):
        return 2.0 * _size(shapes[1]) * int(shapes[2][-1])
    # The one convolution whose shapes say it all: those of the output and of the weight.
    if name == "aten::cudnn_convolution_backward_input":
        output, weight = (shape for shape in shapes if len(shape) == 4)
        return 2.0 * _size(output) * _size(weight[1:])
    return 0.0


def moved_bytes(operator: Event) -> float:
    """Of an operator that reads its tensors and writes one as large as the largest."""
    shapes = operator["args"].get("Input Dims", [])
    sizes = [
        _size(shape) * BYTES[kind]
        for shape, kind in zip(shapes, operator["args"].get("Input type", []), strict=False)
        if shape and kind in BYTES and not isinstance(shape[0], list)
    ]
    return float(sum(sizes) + max(sizes, default=0))


def _size(shape: list[int]) -> int:
    size = 1
    for each in shape:
        size *= each
    return size


def rates(traces: list[Trace], floor: float) -> tuple[list[float], list[float]]:
    """FLOPs and bytes per second of the operators that are long enough to show them."""
    products, simple = [], []
    for trace in traces:
        seconds: dict[object, float] = {}
        for kernel, _ in trace.kernels:
            seconds[_external(kernel)] = seconds.get(_external(kernel), 0) + kernel["dur"] * 1e-6
        done = set()
        for kernel, operator in trace.kernels:
            took = seconds[_external(kernel)]
            if took < 10 * floor * 1e-6 or _external(kernel) in done:
                continue
            done.add(_external(kernel))
            if flops(operator):
                products.append(flops(operator) / took)
            elif "elementwise" in kernel["name"] and moved_bytes(operator):
                simple.append(moved_bytes(operator) / took)
    return products, simple


def describe(name: str, traces: list[Trace]) -> None:
    durations = [kernel["dur"] for trace in traces for kernel, _ in trace.kernels]
    small = [
        kernel["dur"]
        for trace in traces for kernel, operator in trace.kernels
        if 0 < moved_bytes(operator) < SMALL_BYTES
    ]  # fmt: skip
    floor = median(small)
    launch, middle, _ = quantiles([each for trace in traces for each in trace.launches], n=4)
    copied: dict[str, float] = {}
    for way in ("Pageable -> Device", "Pinned -> Device"):
        found = [
            event["args"]["bytes"] / event["dur"] * 1e6
            for trace in traces for event in trace.copies
            if way in event["name"] and event["args"]["bytes"] > 2**20
        ]  # fmt: skip
        if found:
            copied[way] = median(found)
    products, simple = rates(traces, floor)
    calls = [each for trace in traces for each in trace.memory_calls]
    down = SLOWDOWN * SHRINK
    print(f"{name}: {len(traces)} traces, {len(durations)} kernels")
    # The profiler's own share is in it, so the lower quartile is nearer to a run without one.
    row("launch to launch on the host", launch, "us", launch * SLOWDOWN)
    row("the same, median", middle, "us", middle * SLOWDOWN)
    row("kernel, median", median(durations), "us", median(durations) * SLOWDOWN)
    row(f"kernel under {SMALL_BYTES} bytes, median", floor, "us", floor * SLOWDOWN)
    for title, found in (("products", products), ("elementwise", simple)):
        unit = "GFLOP/s" if title == "products" else "GB/s"
        rate = median(found) / 1e9
        row(f"{len(found)} {title}, median", rate, unit, rate / down)
    for way, copied_rate in copied.items():
        row(way, copied_rate / 1e9, "GB/s", copied_rate / 1e9 / down)
    if calls:
        row("cudaMalloc and cudaFree, median", median(calls), "us", median(calls) * SLOWDOWN)


def row(title: str, measured: float, unit: str, twin: float) -> None:
    print(f"  {title:36} {measured:9.1f} {unit:8} twin {twin:9.4g}")


def main(folder: Path) -> None:
    print(f"slowdown {SLOWDOWN:g}, tensors {SHRINK:g} times smaller")
    for device in sorted(each for each in folder.iterdir() if each.is_dir()):
        describe(device.name, [read(file) for file in sorted(device.glob("*.json.gz"))])


if __name__ == "__main__":
    main(Path(sys.argv[1]))
