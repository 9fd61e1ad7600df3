"""What does torch ask of a device module? The Python face of the fake GPU.

The build copies this file beside the compiled library under the name `fakegpu.py`; torch then
calls `_autoload` while it is being imported, because the package metadata tells it to.
"""

from __future__ import annotations

import ctypes
import os
import sys
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.utils.backend_registration import (
    generate_methods_for_privateuse1_backend,
    rename_privateuse1_backend,
)

# Ample for every test-sized job, and little enough that a search for the largest batch runs
# out of this memory long before the host runs out of its own.
DEFAULT_LIMIT_BYTES = 2 * 2**30

# Whoever measures on this device must say so in the result.
is_fake = True

_library: ctypes.CDLL


@dataclass(frozen=True)
class DeviceProperties:
    """What the device says of itself."""

    name: str
    total_memory: int
    uuid: str | None


def set_limit_bytes(nbytes: int) -> None:
    """From now on an allocation that would exceed nbytes raises torch.OutOfMemoryError."""
    _library.fakegpu_set_limit_bytes(nbytes)


def get_device_properties(device: object = None) -> DeviceProperties:
    _, total = mem_get_info()
    return DeviceProperties("Fake GPU", total, os.environ.get("FAKEGPU_UUID"))


def is_available() -> bool:
    return True


def is_initialized() -> bool:
    return True


def device_count() -> int:
    return 1


def current_device() -> int:
    return 0


def device(device: object) -> nullcontext[None]:
    """Select a device for a while; with one device there is nothing to select."""
    return nullcontext()


def synchronize(device: object = None) -> None:
    torch.accelerator.synchronize()


def memory_allocated(device: object = None) -> int:
    return torch.accelerator.memory_allocated()


def max_memory_allocated(device: object = None) -> int:
    return torch.accelerator.max_memory_allocated()


def memory_reserved(device: object = None) -> int:
    return torch.accelerator.memory_reserved()


def reset_peak_memory_stats(device: object = None) -> None:
    torch.accelerator.reset_peak_memory_stats()


def mem_get_info(device: object = None) -> tuple[int, int]:
    """Free and total bytes."""
    free, total = torch.accelerator.get_memory_info()
    return free, total


def empty_cache() -> None:
    torch.accelerator.empty_cache()


def get_amp_supported_dtype() -> list[torch.dtype]:
    return [torch.bfloat16, torch.float16]


# Random numbers come from the CPU's generator, because the CPU's kernels draw them.


def manual_seed_all(seed: int) -> None:
    torch.default_generator.manual_seed(seed)


def get_rng_state(device: object = None) -> torch.Tensor:
    return torch.default_generator.get_state()


def set_rng_state(state: torch.Tensor, device: object = None) -> None:
    torch.default_generator.set_state(state)


def _is_in_bad_fork() -> bool:
    return False


def _autoload() -> None:
    """Make the device known to torch."""
    global _library
    # Loading registers the C++ side: allocator, guard, hooks and operators.
    _library = ctypes.CDLL(str(Path(__file__).with_name("libfakegpu.so")))
    _library.fakegpu_set_limit_bytes.argtypes = [ctypes.c_int64]
    _library.fakegpu_set_limit_bytes.restype = None
    set_limit_bytes(int(os.environ.get("FAKEGPU_LIMIT_BYTES", DEFAULT_LIMIT_BYTES)))
    rename_privateuse1_backend("fakegpu")
    torch._register_device_module("fakegpu", sys.modules[__name__])  # type: ignore[no-untyped-call]
    generate_methods_for_privateuse1_backend()
    # Module.to keeps each parameter's identity on the devices that torch knows by name, but
    # replaces it on any other, which would untie shared weights and orphan an optimiser.
    torch.__future__.set_swap_module_params_on_conversion(True)
