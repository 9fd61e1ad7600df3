"""What did the simulated device do, and when? The log of its kernels, which is the ground truth.

All moments are in seconds of the host's steady clock: those of time.perf_counter(), in every
process of the machine. Work that is queued has an end in the future.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from pathlib import Path

library = ctypes.CDLL(str(Path(__file__).parents[1] / "libfakegpu.so"))

KINDS = ("kernel", "to device", "to host", "collective")


class _Entry(ctypes.Structure):
    _fields_ = (
        ("number", ctypes.c_int64),
        *((name, ctypes.c_double) for name in ("launched", "start", "end", "bytes", "flops")),
        *((name, ctypes.c_int32) for name in ("device", "stream", "name", "kind", "thread")),
    )


class _Wait(ctypes.Structure):
    _fields_ = (("start", ctypes.c_double), ("end", ctypes.c_double), ("thread", ctypes.c_int64))


class _Times(ctypes.Structure):
    _fields_ = tuple(
        (name, ctypes.c_double)
        for name in ("kernel", "flops", "half", "full", "bytes", "link", "pageable", "segment")
    )


def _declare(name: str, result: type | None, *arguments: type) -> None:
    function = getattr(library, f"fakegpu_{name}")
    function.restype, function.argtypes = result, arguments


_declare("set_limit_bytes", None, ctypes.c_int64)
_declare("set_devices", None, ctypes.c_int)
_declare("simulate", None, ctypes.POINTER(_Times))
_declare("kernels", ctypes.c_int64)
_declare("busy_seconds", ctypes.c_double, ctypes.c_int)
_declare("waits", ctypes.c_int64, ctypes.POINTER(ctypes.c_double))
_declare("read_log", ctypes.c_int64, ctypes.c_int64, ctypes.POINTER(_Entry), ctypes.c_int64)
_declare("read_waits", ctypes.c_int64, ctypes.c_double, ctypes.POINTER(_Wait), ctypes.c_int64)
_declare("name", ctypes.c_char_p, ctypes.c_int32)
_declare("end_of_stream", ctypes.c_double, ctypes.c_int, ctypes.c_int64)
_declare("collective", None, ctypes.c_int, ctypes.c_int64, ctypes.c_char_p, *[ctypes.c_double] * 4)


@dataclass(frozen=True)
class Kernel:
    """One piece of work of the device."""

    number: int
    name: str
    kind: str
    device: int
    stream: int
    launched: float
    start: float
    end: float
    bytes: float
    flops: float
    thread: int  # that launched it, as the system numbers them


@dataclass(frozen=True)
class Wait:
    """The host in one call that waits for a device."""

    start: float
    end: float
    thread: int


@dataclass(frozen=True)
class Waits:
    """How often the host waited for a device, and how long in all."""

    count: int
    seconds: float


def kernel_count() -> int:
    """Launched so far; also the number that the next one gets."""
    return int(library.fakegpu_kernels())


def kernel_log(since: int = 0) -> list[Kernel]:
    """What was launched from number `since` on; the oldest of over a million are forgotten."""
    count = max(kernel_count() - since, 0)
    entries = (_Entry * count)()
    found = library.fakegpu_read_log(since, entries, count)
    names: dict[int, str] = {}
    kernels = []
    for entry in entries[:found]:
        if entry.name not in names:
            names[entry.name] = library.fakegpu_name(entry.name).decode()
        kernels.append(
            Kernel(
                entry.number,
                names[entry.name],
                KINDS[entry.kind],
                entry.device,
                entry.stream,
                entry.launched,
                entry.start,
                entry.end,
                entry.bytes,
                entry.flops,
                entry.thread,
            )
        )
    return kernels


def wait_log(since: float = 0.0) -> list[Wait]:
    """When the host waited for a device after a moment; with simulated time only."""
    count = waits().count
    entries = (_Wait * count)()
    found = library.fakegpu_read_waits(since, entries, count)
    return [Wait(each.start, each.end, each.thread) for each in entries[:found]][::-1]


def busy_seconds(device: int = 0) -> float:
    """How long at least one stream of the device had something to do, until now."""
    return float(library.fakegpu_busy_seconds(device))


def waits() -> Waits:
    seconds = ctypes.c_double()
    count = int(library.fakegpu_waits(ctypes.byref(seconds)))
    return Waits(count, seconds.value)
