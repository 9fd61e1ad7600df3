"""How fast could this device be? A few products and a copy, measured beside the script."""

from __future__ import annotations

import statistics
import time

import torch

from diagnose.measure.machine.device import Device
from diagnose.measure.machine.products import float32_products, float32_setting, time_products
from diagnose.records.script import Ceilings

_COPIED_BYTES = 32 * 2**20
# More than the second-level cache of any accelerator.
_COPIED_BYTES_ACCELERATOR = 128 * 2**20
# Larger than any block that the C library keeps for itself.
_FRESH_BYTES = 40 * 2**20
_COPIES = 5


def measure_ceilings(device: Device) -> Ceilings:
    """In a process that trains this needs up to 0.8 GB of an accelerator's free memory."""
    allowed = float32_setting()
    with float32_products("highest"):
        full, double, low = (
            _product_rate(device, each)
            for each in (torch.float32, torch.float64, device.low_precision)
        )
    fewer_bits = 0.0
    if device.kind == "cuda" or allowed != "highest":
        with float32_products("high" if allowed == "highest" else allowed):
            fewer_bits = _product_rate(device, torch.float32)
    return Ceilings(
        flops_per_second=full,
        double_flops_per_second=double,
        low_flops_per_second=low,
        bytes_per_second=_copy_rate(device),
        fresh_bytes_per_second=_fresh_rate() if device.is_cpu else 0.0,
        tensor_float_flops_per_second=fewer_bits,
        low_precision=str(device.low_precision).removeprefix("torch."),
    )


def _product_rate(device: Device, dtype: torch.dtype) -> float:
    try:
        return time_products(device, dtype).flops_per_second
    except RuntimeError:  # a device without this type
        return 0.0


def _copy_rate(device: Device) -> float:
    nbytes = _COPIED_BYTES if device.is_cpu else _COPIED_BYTES_ACCELERATOR
    try:
        source = torch.ones(nbytes // 4, device=device.torch)
        target = torch.empty_like(source)
    except RuntimeError:  # the job has left no memory for it
        return 0.0
    seconds = []
    for _ in range(_COPIES):
        device.synchronize()
        began = device.now()
        target.copy_(source)
        device.synchronize()
        seconds.append(device.now() - began)
    fastest = min(seconds)
    return 2.0 * source.nbytes / fastest if fastest else 0.0


def _fresh_rate() -> float:
    """What the first touch of new memory adds to filling it."""
    fresh, warm = [], []
    for _ in range(_COPIES):
        began = time.perf_counter()
        tensor = torch.ones(_FRESH_BYTES // 4)
        touched = time.perf_counter()
        tensor.fill_(2)
        fresh.append(touched - began)
        warm.append(time.perf_counter() - touched)
        del tensor
    added = statistics.median(fresh) - statistics.median(warm)
    return _FRESH_BYTES / added if added > 0 else 0.0
