"""How much memory may a batch use, and how is it given back? On CPUs and accelerators."""

from __future__ import annotations

import ctypes
import gc
import resource
import sys
from pathlib import Path

import psutil
import torch

from diagnose.measure.machine.device import Device
from diagnose.records.header import Reading

# On the CPU a batch that takes more than this of what was free fails like on an accelerator.
# Above the share that counts as fitting, so that the measured peak decides, and below all of
# it, where the system would begin to kill processes of its own choice.
GUARD_SHARE = 0.95
_CGROUP = Path("/sys/fs/cgroup")


def available_bytes(device: Device, sharing: int) -> Reading:
    """What this process could use in all, its own part included; `sharing` ranks divide a host."""
    if not device.is_cpu:
        free, _ = torch.get_device_module(device.kind).mem_get_info()
        return Reading(float(free + (device.footprint() or 0)))
    own = psutil.Process().memory_info()
    rooms = [own.rss + _free_on_host() / sharing]
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit != resource.RLIM_INFINITY:
        rooms.append(own.rss + limit - own.vms)
    return Reading(float(min(rooms)))


def guard(device: Device, available: float | None) -> None:
    """Let an allocation fail before the system kills somebody. Accelerators do so by themselves."""
    if not device.is_cpu or available is None or sys.platform != "linux":
        return
    own = psutil.Process().memory_info()
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    wanted = int(own.vms - own.rss + GUARD_SHARE * available)
    if soft == resource.RLIM_INFINITY or wanted < soft:
        resource.setrlimit(resource.RLIMIT_AS, (wanted, hard))


def peak_bytes(device: Device) -> Reading:
    """Reserved, not allocated: what the caching allocator holds nobody else can have."""
    if device.is_cpu:
        return device.peak_bytes()
    return Reading(float(torch.accelerator.max_memory_reserved()))


def release(device: Device) -> None:
    """Give back whatever the last probe left, so that the next peak is its own."""
    gc.collect()
    if not device.is_cpu:
        torch.get_device_module(device.kind).empty_cache()
    elif sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # musl has none
        if trim is not None:
            trim(0)


def held_bytes(device: Device) -> int:
    """What this process holds now, to see whether a failed probe gave everything back."""
    if not device.is_cpu:
        return device.footprint() or 0
    return int(psutil.Process().memory_info().rss)


def swapped_bytes(device: Device) -> int:
    """Of this process, moved out to the disk: the CPU's way to spill, and it can be read."""
    if not device.is_cpu:
        return 0
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return 0
    line = next((each for each in lines if each.startswith("VmSwap")), "VmSwap: 0 kB")
    return int(line.split()[1]) * 1024


def _free_on_host() -> float:
    free = float(psutil.virtual_memory().available)
    try:
        limit = (_CGROUP / "memory.max").read_text().strip()
        used = int((_CGROUP / "memory.current").read_text())
    except OSError:  # no container, or one of the older kind
        return free
    return free if limit == "max" else min(free, float(int(limit) - used))
