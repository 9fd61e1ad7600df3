"""What does the fake GPU do when its time is simulated? Each function returns what it saw.

Runs as scenarios.py does. A kernel takes KERNEL seconds here, much longer than its launch, so
that no busy machine turns an answer round.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from tests.support.fakegpu import suite
from tests.support.fakegpu.scenarios import Answer, run_all

fakegpu = torch.get_device_module("fakegpu")

KERNEL = float(os.environ.get("FAKEGPU_KERNEL_US", 0)) * 1e-6
MIB = 2**20


def seconds(work: Callable[[], object]) -> float:
    torch.accelerator.synchronize()
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def host_runs_ahead() -> Answer:
    numbers = torch.zeros(8, device="fakegpu")

    def launch() -> None:
        for _ in range(20):
            numbers.add_(1)

    launching = seconds(launch)

    def read() -> None:
        launch()
        numbers[0].item()

    reading = seconds(read)
    return {"launching": launching, "reading": reading, "value": numbers[0].item()}


def log_tells_the_truth() -> Answer:
    left = torch.ones(8, 4, device="fakegpu")
    torch.accelerator.synchronize()
    first, busy, waited = fakegpu.kernel_count(), fakegpu.busy_seconds(), fakegpu.waits()
    _ = left @ left.t()
    torch.accelerator.synchronize()
    (kernel,) = fakegpu.kernel_log(first)
    return {
        "name": kernel.name,
        "kind": kernel.kind,
        "flops": kernel.flops,
        "bytes": kernel.bytes,
        "in_order": kernel.launched <= kernel.start < kernel.end <= time.perf_counter(),
        "kernels": round((kernel.end - kernel.start) / KERNEL, 3),
        "busy": round((fakegpu.busy_seconds() - busy) / KERNEL, 3),
        "waits": fakegpu.waits().count - waited.count,
        "counted": fakegpu.kernel_count() - first,
    }


def copies_wait_unless_pinned() -> Answer:
    device = torch.ones(64, device="fakegpu")
    ways = {"pageable": torch.ones(64), "pinned": torch.ones(64).pin_memory()}
    waited = {}
    for name, host in ways.items():
        for non_blocking in (False, True):
            torch.accelerator.synchronize()
            before = fakegpu.waits().count
            device.copy_(host, non_blocking=non_blocking)
            waited[f"{name} {non_blocking}"] = fakegpu.waits().count - before
    return waited


def reads_wait() -> Answer:
    numbers = torch.arange(8.0, device="fakegpu")
    mask = torch.arange(8, device="fakegpu") > 3
    works: dict[str, Callable[[], object]] = {
        "item": lambda: numbers[0].item(),
        "if": lambda: bool(mask[0]),
        "nonzero": lambda: mask.nonzero(),
        "mask": lambda: numbers[mask],
        "position": lambda: numbers[torch.zeros(1, dtype=torch.long, device="fakegpu")],
        "fill": lambda: numbers.masked_fill_(mask, 0.0),
        "put value": lambda: numbers.__setitem__(mask, 0.0),
        "add": lambda: numbers + 1,
    }
    answers = {}
    for name, work in works.items():
        before = fakegpu.waits().count
        work()
        answers[name] = fakegpu.waits().count > before
    return answers


def streams_and_events() -> Answer:
    numbers, host = torch.zeros(8, device="fakegpu"), torch.zeros(8).pin_memory()
    side = torch.Stream("fakegpu")
    torch.accelerator.synchronize()
    first = fakegpu.kernel_count()
    begin, done = (torch.Event("fakegpu", enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(4):
        numbers.add_(1)
    with side:
        _ = host.to("fakegpu", non_blocking=True)
        _ = numbers * 2
        done.record()
    numbers.record_stream(torch.accelerator.current_stream())  # no error, and no kernel
    torch.accelerator.current_stream().wait_event(done)
    numbers.add_(1)
    was_done = done.query()
    torch.accelerator.synchronize()
    *main, copy, other, last = fakegpu.kernel_log(first)
    return {
        "copy_overlaps": copy.start < main[0].end,
        "kernels_share_the_device": other.start >= main[-1].end,
        "follows_the_event": last.start >= other.end,
        "was_done": was_done,
        "elapsed": round(begin.elapsed_time(done) / 1e3 / KERNEL),
    }


def queue_is_finite() -> Answer:
    numbers = torch.zeros(1, device="fakegpu")
    launched = seconds(lambda: [numbers.add_(1) for _ in range(1024 + 100)])
    torch.accelerator.synchronize()
    return {"kernels_waited_for": launched / KERNEL}


def count_flops_of_layers() -> Answer:
    found = {}
    image = torch.ones(2, 3, 8, 8, device="fakegpu")
    query = torch.ones(2, 4, 16, 8, device="fakegpu", requires_grad=True)
    layer = nn.Conv2d(3, 5, 3, padding=1).to("fakegpu")
    works: dict[str, Callable[[], torch.Tensor]] = {
        "convolution": lambda: layer(image),
        "attention": lambda: functional.scaled_dot_product_attention(query, query, query),
    }
    for name, work in works.items():
        first = fakegpu.kernel_count()
        output = work()
        middle = fakegpu.kernel_count()
        output.sum().backward()  # type: ignore[no-untyped-call]
        log = fakegpu.kernel_log(first)
        found[f"{name} forward"] = sum(each.flops for each in log if each.number < middle)
        found[f"{name} backward"] = sum(each.flops for each in log if each.number >= middle)
    return found


def layers_compute_like_cpu() -> Answer:
    torch.manual_seed(0)
    differences = {}
    for name, layer, given in (
        ("convolution", nn.Conv2d(3, 5, 3, stride=2), torch.randn(2, 3, 9, 9)),
        ("transposed", nn.ConvTranspose2d(3, 5, 3), torch.randn(2, 3, 5, 5)),
        ("attention", nn.TransformerEncoderLayer(8, 2, 16, 0.0), torch.randn(4, 2, 8)),
    ):
        expected = layer(given)
        expected.square().sum().backward()
        on_cpu = [weight.grad for weight in layer.parameters()]
        layer.zero_grad()
        layer.to("fakegpu")
        actual = layer(given.to("fakegpu"))
        actual.square().sum().backward()
        differences[name] = max(
            (one.cpu() - other).abs().max().item()
            for one, other in zip(
                [actual.detach(), *(weight.grad for weight in layer.parameters())],
                [expected.detach(), *on_cpu],
                strict=True,
            )
            if one is not None and other is not None
        )
    return differences


def foreach_is_one_kernel() -> Answer:
    weights = [nn.Parameter(torch.ones(4, device="fakegpu")) for _ in range(10)]
    counts = {}
    for name, foreach in (("foreach", True), ("loop", False)):
        optimizer = torch.optim.SGD(weights, lr=1.0, foreach=foreach)
        for weight in weights:
            weight.grad = torch.ones_like(weight)
        first = fakegpu.kernel_count()
        optimizer.step()
        counts[name] = fakegpu.kernel_count() - first
    return counts | {"value": weights[-1][0].item()}


def second_device() -> Answer:
    layer = nn.Linear(4, 4).to("fakegpu:1")
    before = [fakegpu.busy_seconds(index) for index in (0, 1)]
    began = time.perf_counter()
    loss = layer(torch.ones(2, 4, device="fakegpu:1")).sum()
    loss.backward()
    torch.accelerator.synchronize()  # the current device has nothing to do
    first_waited = time.perf_counter() - began
    torch.accelerator.synchronize(1)
    busy = [fakegpu.busy_seconds(index) - earlier for index, earlier in enumerate(before)]
    with fakegpu.device(1):
        there = torch.ones(1, device="fakegpu").device
    return {
        "gradient": str(layer.weight.grad.device) if layer.weight.grad is not None else None,
        "waited_less": first_waited < busy[1],
        "first_is_idle": busy[0] == 0.0,
        "there": str(there),
        "here": str(torch.ones(1, device="fakegpu").device),
        "allocated": [fakegpu.memory_allocated(index) > 0 for index in (0, 1)],
    }


def allocator_retries() -> Answer:
    """Memory that is free, but in pieces of the wrong size."""
    fakegpu.empty_cache()
    base = fakegpu.memory_reserved()
    fakegpu.set_limit_bytes(base + 64 * MIB)
    retries = fakegpu.memory_stats()["num_alloc_retries"]
    small = torch.empty(30 * MIB, dtype=torch.uint8, device="fakegpu")
    del small
    cached = fakegpu.memory_reserved() - base
    again = torch.empty(28 * MIB, dtype=torch.uint8, device="fakegpu")
    reused = fakegpu.memory_reserved() - base
    del again
    waits = fakegpu.waits().count
    large = torch.empty(50 * MIB, dtype=torch.uint8, device="fakegpu")
    stats = fakegpu.memory_stats()
    refused = None
    try:
        torch.empty(20 * MIB, dtype=torch.uint8, device="fakegpu")
    except torch.OutOfMemoryError as error:
        refused = str(error).split(".")[0]
    del large
    fakegpu.empty_cache()
    after = fakegpu.memory_reserved() - base
    fakegpu.set_limit_bytes(2 * 2**30)
    return {
        "cached": cached // MIB,
        "reused": reused // MIB,
        "retries": int(str(stats["num_alloc_retries"])) - int(str(retries)),
        "waited": fakegpu.waits().count > waits,
        "refused": refused,
        "after": after,
    }


def refuses_what_cuda_refuses() -> Answer:
    weight = nn.Parameter(torch.ones(4, device="fakegpu"))
    weight.grad = torch.ones_like(weight)
    adam = torch.optim.AdamW([weight], fused=False, foreach=False)
    adam.step()
    adam.param_groups[0]["fused"] = True
    recurrent = nn.LSTM(4, 4).to("fakegpu").eval()

    def read_in_a_graph() -> None:
        with torch.Stream("fakegpu"), torch.accelerator.Graph():
            weight.sum().item()

    works: dict[str, Callable[[], object]] = {
        "fused": adam.step,
        "recurrent": lambda: recurrent(torch.ones(2, 3, 4, device="fakegpu"))[0].sum().backward(),
        "graph": read_in_a_graph,
    }
    refusals = {}
    for name, work in works.items():
        try:
            work()
        except RuntimeError as error:
            refusals[name] = str(error)
    recurrent.train()
    recurrent(torch.ones(2, 3, 4, device="fakegpu"))[0].sum().backward()
    return refusals | {"usable": weight.sum().isfinite().item()}


def graph_repeats_its_kernels() -> Answer:
    numbers = torch.zeros(2, device="fakegpu")
    graph = torch.accelerator.Graph()
    with torch.Stream("fakegpu"), graph:
        numbers.add_(1)
        doubled = numbers * 2
    captured = numbers.tolist()
    first = fakegpu.kernel_count()
    graph.replay()
    graph.replay()
    return {
        "captured": captured,
        "numbers": numbers.tolist(),
        "doubled": doubled.tolist(),
        "names": [each.name for each in fakegpu.kernel_log(first)][:4],
    }


def read_variables() -> Answer:
    profiles = fakegpu.profiles
    h100 = profiles.PROFILES["h100"]
    both = profiles.speeds({"FAKEGPU_PROFILE": "h100", "FAKEGPU_GFLOPS": "7"})
    try:
        unknown = str(profiles.speeds({"FAKEGPU_PROFILE": "a100"}))
    except ValueError as error:
        unknown = str(error)
    return {
        "none": profiles.speeds({}),
        "profile": profiles.speeds({"FAKEGPU_PROFILE": "h100"}) == h100,
        "one": profiles.speeds({"FAKEGPU_GFLOPS": "7"}) == profiles.Speeds(gflops=7),
        "both": [both.gflops, both.gbytes == h100.gbytes],
        "slower": _relative(profiles.speeds({"FAKEGPU_PROFILE": "h100", profiles.SLOWDOWN: "4"})),
        "names": list(profiles.PROFILES),
        "unknown": unknown,
    }


def _relative(speeds: Any) -> list[float]:
    """To those of the h100."""
    usual = fakegpu.profiles.PROFILES["h100"]
    return [
        getattr(speeds, name) / getattr(usual, name)
        for name in ("kernel_us", "gflops", "link_gbytes", "pageable")
    ]


SCENARIOS: tuple[Callable[[], Answer], ...] = (
    host_runs_ahead,
    log_tells_the_truth,
    copies_wait_unless_pinned,
    reads_wait,
    streams_and_events,
    queue_is_finite,
    count_flops_of_layers,
    layers_compute_like_cpu,
    foreach_is_one_kernel,
    second_device,
    allocator_retries,
    refuses_what_cuda_refuses,
    graph_repeats_its_kernels,
    read_variables,
    suite.suite_measures_the_second,
    suite.steps_by_events,
    suite.copies_that_wait,
    suite.copies_in_a_trial,
    suite.fused_in_the_middle,
    suite.which_device,
    suite.new_setting_of_tf32,
)


if __name__ == "__main__":
    json.dump(run_all(SCENARIOS), sys.stdout)
