"""How much memory does a piece of work take? Every allocation and release of it, counted.

The resident size of a process says nothing about that where freed memory is kept for the next
tensor: a smaller peak then shows nowhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch.profiler import ProfilerActivity, profile

from diagnose.measure.machine.device import Device


@dataclass(frozen=True)
class Allocations:
    """Of one piece of work on one device."""

    peak_bytes: int  # the most that it held at once, above what was held before
    allocated_bytes: int  # all that it ever asked for
    count: int


def count_allocations(work: Callable[[], object], device: Device) -> Allocations:
    """What the allocator of this device gave and took back while the work ran."""
    device.synchronize()
    # A profiler that waits for operators of other devices would only cost time.
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        work()
        device.synchronize()
    found = seen.profiler
    assert found is not None
    assert found.kineto_results is not None
    events = [each for each in found.kineto_results.events() if each.name() == "[memory]"]
    kind = torch.device(device.kind).type.upper()
    own = [each for each in events if each.device_type().name == kind]
    return add_up(each.nbytes() for each in sorted(own, key=lambda each: each.start_ns()))


def add_up(changes: Iterable[int]) -> Allocations:
    """From bytes given (positive) and taken back (negative), in their order."""
    held = peak = allocated = count = 0
    for nbytes in changes:
        held += nbytes
        peak = max(peak, held)
        if nbytes > 0:
            allocated, count = allocated + nbytes, count + 1
    return Allocations(peak, allocated, count)
