"""What does torch ask of a device module? The Python face of the fake GPU.

The build copies this package beside the compiled library under the name `fakegpu`; torch then
calls `_autoload` while it is being imported, because the package metadata tells it to.
"""

from __future__ import annotations

import ctypes
import os
import sys
from dataclasses import dataclass

import torch
from torch.utils.backend_registration import (
    generate_methods_for_privateuse1_backend,
    rename_privateuse1_backend,
)

from .log import Kernel as Kernel
from .log import Waits as Waits
from .log import _Times, library
from .log import busy_seconds as busy_seconds
from .log import kernel_count as kernel_count
from .log import kernel_log as kernel_log
from .log import wait_log as wait_log
from .log import waits as waits
from .profiles import Speeds
from .profiles import speeds as _speeds

# Ample for every test-sized job, and little enough that a search for the largest batch runs
# out of this memory long before the host runs out of its own.
DEFAULT_LIMIT_BYTES = 2 * 2**30
DEVICES = int(os.environ.get("FAKEGPU_DEVICES", 1))

# Whoever measures on this device must say so in the result.
is_fake = True
# Whether work takes time of the device; else it is over when the call returns.
is_simulated = False


@dataclass(frozen=True)
class DeviceProperties:
    """What the device says of itself."""

    name: str
    total_memory: int
    uuid: str | None


def set_limit_bytes(nbytes: int) -> None:
    """From now on an allocation that would exceed nbytes raises torch.OutOfMemoryError."""
    library.fakegpu_set_limit_bytes(nbytes)


def get_device_properties(device: torch.types.Device = None) -> DeviceProperties:
    _, total = mem_get_info(device)
    return DeviceProperties("Fake GPU", total, os.environ.get("FAKEGPU_UUID"))


def is_available() -> bool:
    return True


def is_initialized() -> bool:
    return True


def device_count() -> int:
    return DEVICES


def current_device() -> int:
    return torch.accelerator.current_device_index()


def set_device(device: torch.types.Device) -> None:
    torch.accelerator.set_device_index(_index(device))


def device(device: torch.types.Device) -> torch.accelerator.device_index:
    """Select a device for a while."""
    return torch.accelerator.device_index(_index(device))


def _index(device: torch.types.Device) -> int:
    if isinstance(device, int):
        return device
    index = None if device is None else torch.device(device).index
    return current_device() if index is None else index


def current_stream(device: torch.types.Device = None) -> torch.Stream:
    return torch.accelerator.current_stream(_index(device))


def synchronize(device: torch.types.Device = None) -> None:
    torch.accelerator.synchronize(_index(device))


def memory_allocated(device: torch.types.Device = None) -> int:
    return torch.accelerator.memory_allocated(_index(device))


def max_memory_allocated(device: torch.types.Device = None) -> int:
    return torch.accelerator.max_memory_allocated(_index(device))


def memory_reserved(device: torch.types.Device = None) -> int:
    return torch.accelerator.memory_reserved(_index(device))


def memory_stats(device: torch.types.Device = None) -> dict[str, object]:
    return dict(torch.accelerator.memory_stats(_index(device)))


def reset_peak_memory_stats(device: torch.types.Device = None) -> None:
    torch.accelerator.reset_peak_memory_stats(_index(device))


def mem_get_info(device: torch.types.Device = None) -> tuple[int, int]:
    """Free and total bytes."""
    free, total = torch.accelerator.get_memory_info(_index(device))
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
    """Make the device known to torch. The library registered its side when it was loaded."""
    library.fakegpu_set_devices(DEVICES)
    set_limit_bytes(int(os.environ.get("FAKEGPU_LIMIT_BYTES", DEFAULT_LIMIT_BYTES)))
    rename_privateuse1_backend("fakegpu")
    torch._register_device_module("fakegpu", sys.modules[__name__])  # type: ignore[no-untyped-call]
    generate_methods_for_privateuse1_backend()
    # Module.to keeps each parameter's identity on the devices that torch knows by name, but
    # replaces it on any other, which would untie shared weights and orphan an optimiser.
    torch.__future__.set_swap_module_params_on_conversion(True)
    if found := _speeds(os.environ):
        _simulate(found)


def _simulate(speeds: Speeds) -> None:
    global is_simulated
    is_simulated = True
    times = _Times(
        speeds.kernel_us * 1e-6,
        speeds.gflops * 1e9,
        speeds.half,
        speeds.full,
        speeds.gbytes * 1e9,
        speeds.link_gbytes * 1e9,
        speeds.pageable,
        speeds.segment_us * 1e-6,
    )
    library.fakegpu_simulate(ctypes.byref(times))
    _count_attention_flops()
    if torch.distributed.is_available():
        from .collectives import register

        register(speeds.network_gbytes * 1e9)


def _count_attention_flops() -> None:
    """torch counts those of every attention kernel but the one that other devices bring."""
    from torch.utils.flop_counter import (
        register_flop_formula,
        sdpa_backward_flop_count,
        sdpa_flop_count,
    )

    aten = torch.ops.aten

    @register_flop_formula(aten._scaled_dot_product_fused_attention_overrideable)
    def forward(
        query: list[int], key: list[int], value: list[int], *_: object, **__: object
    ) -> int:
        return int(sdpa_flop_count(query, key, value))  # type: ignore[no-untyped-call]

    @register_flop_formula(aten._scaled_dot_product_fused_attention_overrideable_backward)
    def backward(
        gradient: list[int],
        query: list[int],
        key: list[int],
        value: list[int],
        *_: object,
        **__: object,
    ) -> int:
        return int(sdpa_backward_flop_count(gradient, query, key, value))  # type: ignore[no-untyped-call]
