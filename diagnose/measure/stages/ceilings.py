"""What can this device do at best? Arithmetic, memory, launches, and the copy to it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from diagnose.measure.machine.device import Device
from diagnose.measure.machine.products import (
    choose_float32_products,
    float32_setting,
    operands,
    time_products,
)
from diagnose.measure.stages.plan import NO_ARITHMETIC, Context, Plan, Variant
from diagnose.measure.words import one_sentence
from diagnose.records.header import Reading

# Sides whose three matrices outgrow the caches that would flatter a smaller product.
MATMUL_SIDE_CPU = 1024
MATMUL_SIDE_ACCELERATOR = 8192
# Far more than any last-level cache.
COPY_BYTES = 256 * 2**20
OPERATIONS_PER_STEP = 1000
# No product may take longer: a device without a fast path gets the side of the probe instead.
LONGEST_MATMUL_SECONDS = 0.05
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def matmul_variant(device: Device, dtype: torch.dtype, *, tf32: bool = False) -> Variant:
    """A large square product in the layout that this device multiplies fastest."""
    probe = time_products(device, dtype)
    layout = probe.fastest
    side = MATMUL_SIDE_CPU if device.is_cpu else MATMUL_SIDE_ACCELERATOR
    if 2.0 * side**3 / probe.flops_per_second > LONGEST_MATMUL_SECONDS:
        side = probe.side
    matrices = [torch.randn(side, side, device=device.torch).to(dtype) for _ in range(2)]
    left, right = operands(*matrices)[layout]
    out = torch.empty_like(left)
    usual = float32_setting()  # the workload may have chosen it
    name = "tf32" if tf32 else str(dtype).removeprefix("torch.")
    return Variant(
        name=f"matmul {name}",
        step=lambda: torch.mm(left, right, out=out),
        settings={"ceiling": "matmul", "dtype": name, "side": side, "layout": layout},
        flops_per_step=Reading(2.0 * side**3),
        before_slot=lambda: choose_float32_products("high" if tf32 else "highest"),
        after_slot=lambda: choose_float32_products(usual),
    )


def memory_variant(device: Device) -> Variant:
    source = torch.ones(COPY_BYTES // 4, device=device.torch)
    target = torch.empty_like(source)
    return Variant(
        name="memory copy",
        step=lambda: target.copy_(source),
        settings={"ceiling": "memory", "dtype": "float32"},
        flops_per_step=NO_ARITHMETIC,
        bytes_per_step=Reading(2.0 * source.nbytes),  # read once, written once
    )


def launch_variant(device: Device) -> Variant:
    element = torch.zeros(1, device=device.torch)

    def launch() -> None:
        for _ in range(OPERATIONS_PER_STEP):
            element.add_(1)

    return Variant(
        name="empty operation",
        step=launch,
        settings={"ceiling": "launch", "operations_per_step": OPERATIONS_PER_STEP},
        flops_per_step=NO_ARITHMETIC,
    )


def copy_variant(device: Device, *, pinned: bool) -> Variant:
    source = torch.ones(COPY_BYTES // 4)
    if pinned:
        source = source.pin_memory()
    target = torch.empty(source.shape, device=device.torch)
    return Variant(
        name=f"host to device copy, {'pinned' if pinned else 'pageable'}",
        step=lambda: target.copy_(source, non_blocking=pinned),
        settings={"ceiling": "copy", "pinned": pinned},
        flops_per_step=NO_ARITHMETIC,
        bytes_per_step=Reading(float(source.nbytes)),
    )


@contextmanager
def plan(context: Context) -> Iterator[Plan]:
    device = context.device
    variants = [matmul_variant(device, dtype) for dtype in DTYPES]
    if device.kind == "cuda":
        variants.append(matmul_variant(device, torch.float32, tf32=True))
    variants += [memory_variant(device), launch_variant(device)]
    notes = []
    if device.is_cpu:
        notes.append("host to device copy: not applicable, the device is the host")
    else:
        for pinned in (True, False):
            # Pinned memory is limited under WSL2 and in containers.
            try:
                variants.append(copy_variant(device, pinned=pinned))
            except RuntimeError as error:
                kind = "pinned" if pinned else "pageable"
                notes.append(
                    f"host to device copy, {kind}: not measured, {one_sentence(str(error))}"
                )
    yield Plan(variants, notes)
