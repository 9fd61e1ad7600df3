"""How fast could this device be? A few products and a copy, measured beside the script."""

from __future__ import annotations

import statistics
import time

import torch

from diagnose.measure.machine.device import Device
from diagnose.measure.stages.precision import PROBE_SIDE, matmul_seconds
from diagnose.records.script import Ceilings

_COPIED_BYTES = 32 * 2**20
# Larger than any block that the C library keeps for itself.
_FRESH_BYTES = 40 * 2**20
_COPIES = 5


def measure_ceilings(device: Device) -> Ceilings:
    return Ceilings(
        flops_per_second=_product_rate(device, torch.float32),
        double_flops_per_second=_product_rate(device, torch.float64),
        low_flops_per_second=_product_rate(device, device.low_precision),
        bytes_per_second=_copy_rate(device),
        fresh_bytes_per_second=_fresh_rate() if device.is_cpu else 0.0,
    )


def _product_rate(device: Device, dtype: torch.dtype) -> float:
    try:
        seconds = min(matmul_seconds(device, dtype).values())
    except RuntimeError:  # a device without this type
        return 0.0
    return 2.0 * PROBE_SIDE**3 / seconds if seconds else 0.0


def _copy_rate(device: Device) -> float:
    source = torch.ones(_COPIED_BYTES // 4, device=device.torch)
    target = torch.empty_like(source)
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
