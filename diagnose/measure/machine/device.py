"""Which device is measured? The one interface to CPU, CUDA and any other accelerator.

torch.accelerator and torch.get_device_module first; what only CUDA has lives in its own file.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

import torch

from diagnose.measure.gpu import nvml
from diagnose.measure.gpu.nvml import Failure, Session
from diagnose.measure.machine.cuda import read_cuda_version, read_utilization
from diagnose.records.header import Reading

RETRIES = "num_alloc_retries"


class DeviceError(Exception):
    """The device asked for cannot be used; the message says what to do."""


class Device:
    """A device under test; also the clock's timer for it."""

    def __init__(self, kind: str, index: int = 0) -> None:
        self.kind = kind
        self.torch = torch.device(kind) if kind == "cpu" else torch.device(kind, index)
        self._module: Any = torch.get_device_module(kind)

    @property
    def is_cpu(self) -> bool:
        return self.kind == "cpu"

    @property
    def is_fake(self) -> bool:
        """Test devices say so themselves, and their reports are labelled."""
        return bool(getattr(self._module, "is_fake", False))

    # --- the clock's timer ---

    def now(self) -> float:
        return time.monotonic()

    def synchronize(self) -> None:
        if not self.is_cpu:
            torch.accelerator.synchronize(self.torch)

    @property
    def step_clock(self) -> Literal["wall", "device events"]:
        return "wall" if self.is_cpu else "device events"

    def stamp(self) -> object:
        if self.is_cpu:
            return time.monotonic()
        event = torch.Event(self.torch, enable_timing=True)
        event.record(torch.accelerator.current_stream(self.torch))
        return event

    def between(self, stamps: Sequence[Any]) -> tuple[float, ...] | None:
        pairs = itertools.pairwise(stamps)
        if self.is_cpu:
            return tuple(after - before for before, after in pairs)
        try:
            milliseconds = [before.elapsed_time(after) for before, after in pairs]
        except RuntimeError:
            return None  # a device whose events carry no time
        # A device that does not implement timing may also answer with zeros.
        return tuple(ms / 1e3 for ms in milliseconds) if any(milliseconds) else None

    def busy_seconds(self) -> float | None:
        """So far, on a device that counts them itself."""
        read = getattr(self._module, "busy_seconds", None)
        return None if read is None else float(read(self.torch.index))

    def utilization(self) -> float | None:
        """The share of the last moment in which it worked, if it says so."""
        return read_utilization(self.torch.index) if self.kind == "cuda" else None

    def footprint(self) -> int | None:
        read = getattr(self._module, "memory_reserved", None)
        return None if self.is_cpu or read is None else int(read(self.torch))

    # --- memory ---

    def reset_peak(self) -> None:
        if self.is_cpu:
            # "5" resets the peak resident size of this process (proc(5)).
            with contextlib.suppress(OSError):  # not on every system, and not in every sandbox
                Path("/proc/self/clear_refs").write_text("5")
        else:
            self._module.reset_peak_memory_stats(self.torch)

    def peak_bytes(self) -> Reading:
        """Peak since the last reset: allocator bytes, or the process's resident size on CPU."""
        if not self.is_cpu:
            return Reading(float(self._module.max_memory_allocated(self.torch)))
        # By hand: psutil knows the present size only, and getrusage no peak since a reset.
        with contextlib.suppress(OSError):
            for line in Path("/proc/self/status").read_text().splitlines():
                if line.startswith("VmHWM"):
                    return Reading(int(line.split()[1]) * 1024.0)
        return Reading(None, "this system does not tell the peak resident size")

    def free_bytes(self) -> int | None:
        """What could still be allocated: what the driver has, and what was kept and is unused."""
        read = getattr(self._module, "mem_get_info", None)
        if self.is_cpu or read is None:
            return None
        free, _ = read(self.torch)
        module = self._module
        kept = module.memory_reserved(self.torch) - module.memory_allocated(self.torch)
        return int(free + max(0, kept))

    def allocator_retries(self) -> int:
        """How often it ran out, waited for the device, freed what it had kept, and tried again."""
        read = getattr(self._module, "memory_stats", None)
        return 0 if self.is_cpu or read is None else int(read(self.torch).get(RETRIES, 0))

    # --- numbers ---

    @property
    def low_precision(self) -> torch.dtype:
        """float16 is what the job uses on CUDA; elsewhere bfloat16 needs no loss scaling."""
        usual = torch.float16 if self.kind == "cuda" else torch.bfloat16
        chosen: torch.dtype = getattr(self._module, "low_precision", usual)
        return chosen


def open_device(kind: str | None) -> Device:
    """The device asked for, else the accelerator that is there, else the CPU."""
    if kind is None:
        return _open_default()
    asked, present = kind, _find_accelerator()
    kind, colon, index = asked.partition(":")
    if kind in ("cpu", present):
        return Device(kind, _choose_index(kind, index) if colon else _current_index(kind))
    have = f"cpu and {present}" if present else "only cpu"
    raise DeviceError(
        f"device '{asked}' is not available: this torch {torch.__version__} sees {have}; "
        "choose one of these with --device, or install a torch build for your device"
    )


def _choose_index(kind: str, index: str) -> int:
    count = 1 if kind == "cpu" else torch.accelerator.device_count()
    if index.isdecimal() and int(index) < count:
        return int(index)
    have = f"{kind}:0" if count == 1 else f"{kind}:0 to {kind}:{count - 1}"
    raise DeviceError(f"there is no device {kind}:{index}: torch sees {have}")


def _current_index(kind: str) -> int:
    return 0 if kind == "cpu" else torch.accelerator.current_device_index()


def open_visible_device(used: Iterable[torch.device] = ()) -> Device:
    """What a program computes on that chooses its device itself: the accelerator of the most of
    these, else the one that torch would take.
    """
    counted = Counter(each for each in used if each.type not in ("cpu", "meta"))
    if counted:
        most = counted.most_common(1)[0][0]
        return Device(most.type, most.index or 0)
    kind = _find_accelerator()
    return Device(kind, _current_index(kind)) if kind else Device("cpu")


def _open_default() -> Device:
    device = open_visible_device()
    if device.is_cpu:
        with nvml.open_session() as session:
            problem = find_unused_gpus(session)
        if problem:
            raise DeviceError(problem)
    return device


def _find_accelerator() -> str | None:
    # Asked in this order: torch 2.6 raises where there is no accelerator to name.
    accelerator = torch.accelerator.is_available() and torch.accelerator.current_accelerator()
    return accelerator.type if accelerator else None


def find_unused_gpus(session: Session | Failure) -> str:
    """Why torch does not see the GPUs that NVML sees, and what to do; "" if there are none.

    Typically torch is built for a newer CUDA than the driver knows. Measuring the CPU of such a
    machine is hardly what anybody wants. Whoever hides the GPUs by CUDA_VISIBLE_DEVICES does.
    """
    gpus = session.devices()
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES", "0").strip() in ("", "-1")
    if hidden or not gpus:
        return ""
    driver = nvml.as_fact(session.ask("nvmlSystemGetDriverVersion")).value or "unknown"
    # 12020 is CUDA 12.2.
    newest = session.ask("nvmlSystemGetCudaDriverVersion_v2")
    knows = "" if isinstance(newest, Failure) else f" (CUDA {newest // 1000}.{newest % 1000 // 10})"
    cuda = read_cuda_version()
    built = f"built for CUDA {cuda.value}" if cuda.value else "built without CUDA"
    update = "update the driver or " if cuda.value else ""
    return (
        f"this machine has {len(gpus)} NVIDIA GPU{'s' * (len(gpus) > 1)} but torch sees none: the "
        f"driver is {driver}{knows} and torch {torch.__version__} is {built}; {update}"
        "install the torch build for this driver (pytorch.org), or measure the CPU by --device cpu"
    )
