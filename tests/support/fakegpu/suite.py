"""What does this suite see of a device whose time is simulated? Each function returns it.

As in timed.py, whose process runs them.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import torch

from diagnose.measure.lines.operators import observe
from diagnose.measure.machine.device import (
    Device,
    DeviceError,
    open_device,
    open_visible_device,
)
from diagnose.measure.machine.products import float32_products
from diagnose.measure.script.change.stand_ins import KeptCopies
from diagnose.measure.script.change.updates import time_updates
from diagnose.measure.script.patches import Patches
from diagnose.measure.script.watch.clock import StepClock
from diagnose.measure.script.watch.origins import Feed, Feeds
from diagnose.measure.script.watch.where import Sources
from diagnose.measure.stages.ceilings import matmul_variant
from diagnose.measure.stages.steps import full_precision
from tests.support.fakegpu.scenarios import Answer

fakegpu = torch.get_device_module("fakegpu")

KERNEL = float(os.environ.get("FAKEGPU_KERNEL_US", 0)) * 1e-6
MIB = 2**20


def suite_measures_the_second() -> Answer:
    """The suite's own clock and memory, on a device that is not the current one."""
    device = Device("fakegpu", 1)
    numbers = torch.zeros(4, device=device.torch)
    began = device.stamp()
    device.reset_peak()
    for _ in range(5):
        numbers.add_(1)
    more = torch.zeros(3 * MIB, dtype=torch.uint8, device=device.torch)
    ended = device.stamp()
    device.synchronize()
    (kernel,) = fakegpu.kernel_log(fakegpu.kernel_count() - 1)
    elapsed = device.between([began, ended])
    del more
    return {
        "waited": kernel.end <= time.perf_counter(),
        "kernels": None if elapsed is None else round(elapsed[0] / KERNEL),
        "peak_mib": (device.peak_bytes().value or 0) // MIB,
        "reserved": device.footprint() == fakegpu.memory_reserved(1),
    }


def steps_by_events() -> Answer:
    """Two steps of five kernels: the host is ahead, and their time is the device's."""
    clock = StepClock(Device("fakegpu"))
    numbers = torch.zeros(8, device="fakegpu")
    clock.begin()

    def launch() -> None:
        for _ in range(2):
            for _ in range(5):
                numbers.add_(1)
            clock.note()

    began = time.perf_counter()
    launch()
    queueing = time.perf_counter() - began
    return {"queueing": queueing, "kernels": [round(each / KERNEL) for each in clock.read()]}


def copies_that_wait() -> Answer:
    """As the launch map counts them."""
    usual, pinned = torch.ones(4), torch.ones(4).pin_memory()
    copy = torch.ops.aten._to_copy.default

    def waits(source: torch.Tensor, **options: object) -> bool:
        kwargs = {"device": torch.device("fakegpu"), **options}
        return observe(copy, (source,), kwargs, copy(source, **kwargs), "fakegpu").synchronizes

    return {
        "blocking": waits(usual),
        "pageable": waits(usual, non_blocking=True),
        "pinned, blocking": waits(pinned),
        "pinned": waits(pinned, non_blocking=True),
    }


def copies_in_a_trial() -> Answer:
    """Of a kept batch: what is converted stays so, what is moved is moved without a wait."""
    return {"usual": _copies_of(torch.ones(4)), "pinned": _copies_of(torch.ones(4).pin_memory())}


def _copies_of(batch: torch.Tensor) -> Answer:
    feeds = Feeds(Sources(Path.cwd()), keeps=True)
    feed = feeds.feeds[0] = Feed(None, 2, None, None, 0, 0)
    feed.batches = [batch]
    rows = feed.serve("replay")
    seen = []
    with Patches() as patches:
        KeptCopies(feeds).replay(patches)
        for _ in range(2):
            first, before = fakegpu.kernel_count(), fakegpu.waits().count
            moved, doubled = rows.to("fakegpu"), rows.double()
            waited = fakegpu.waits().count - before
            kinds = [each.kind for each in fakegpu.kernel_log(first)]
            seen.append((kinds, waited, doubled))
    return {
        "first": seen[0][:2],
        "then": seen[1][:2],
        "kept": seen[0][2] is seen[1][2],
        "value": moved.sum().item(),
    }


def fused_in_the_middle() -> Answer:
    """An update that was not fused counts its steps on the host; its fused copy on the device."""
    weight = torch.ones(4, device="fakegpu", requires_grad=True)
    optimizer = torch.optim.AdamW([weight], lr=0.1)

    def step() -> float:
        weight.grad = torch.ones_like(weight)
        optimizer.step()
        return float(optimizer.state[weight]["step"])

    step()
    (timed,) = time_updates([optimizer], Device("fakegpu"))
    return {
        "what": [each.what for each in timed.changes(None)],
        "windows": len(timed.windows(0)),
        "counted": step(),
        "place": optimizer.state[weight]["step"].device.type,
    }


def which_device() -> Answer:
    parameters = [torch.device("cpu"), *[torch.device("fakegpu", 1)] * 2]

    def refusal(name: str) -> str:
        try:
            return str(open_device(name).torch)
        except DeviceError as error:
            return str(error)

    return {
        "of parameters": str(open_visible_device(parameters).torch),
        "of nothing": str(open_visible_device().torch),
        "asked": str(open_device("fakegpu:1").torch),
        "none": refusal("fakegpu:7"),
    }


def new_setting_of_tf32() -> Answer:
    """Once it is used, torch refuses to answer in the old words. Last: it cannot be undone."""
    device = Device("fakegpu")
    device.kind = "cuda"
    before = full_precision(device)
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    after = full_precision(device)
    with float32_products("highest"):
        inside = full_precision(device)
    ceiling = matmul_variant(Device("cpu"), torch.float32)
    ceiling.before_slot()
    ceiling.after_slot()
    return {"before": before, "after": after, "inside": inside, "again": full_precision(device)}
