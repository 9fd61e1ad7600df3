"""Does mixed precision make this device faster? On some it is a hundred times slower."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch

from diagnose.measure.machine.device import Device
from diagnose.measure.stages.plan import Context, Plan
from diagnose.measure.stages.training import training_variant

# Large enough that a fast path would show, small enough to end soon where there is none.
PROBE_SIDE = 256
PROBE_REPEATS = 8
# Without a fast path a step may take so long; the batch is cut until it should.
LONGEST_STEP_SECONDS = 0.5


def matmul_seconds(device: Device, dtype: torch.dtype) -> dict[str, float]:
    """Seconds of one small product by layout; kernels differ tenfold between layouts."""
    matrix = torch.ones(PROBE_SIDE, PROBE_SIDE, dtype=dtype, device=device.torch)
    fastest = {}
    for layout, (left, right) in operands(matrix, matrix).items():
        seconds = []
        for _ in range(PROBE_REPEATS):
            device.synchronize()
            began = device.now()
            left @ right
            device.synchronize()
            seconds.append(device.now() - began)
        # The fastest: a disturbed probe must not pass for a missing fast path.
        fastest[layout] = min(seconds)
    return fastest


def operands(
    left: torch.Tensor, right: torch.Tensor
) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """The three products of a linear layer: forward, gradient of its input, of its weight."""
    return {"NT": (left, right.t()), "NN": (left, right), "TN": (left.t(), right)}


def slowdown(device: Device) -> float:
    """How many times longer a linear layer's products take in low precision than in float32."""
    low, full = (matmul_seconds(device, d) for d in (device.low_precision, torch.float32))
    return sum(low.values()) / sum(full.values())


def capped_batch_size(context: Context, factor: float) -> int:
    """The largest batch whose mixed-precision step should stay within the limit."""
    if context.hints.training_seconds is None:
        return 1
    share = LONGEST_STEP_SECONDS / (context.hints.training_seconds * factor)
    return max(1, min(context.size.batch_size, int(context.size.batch_size * share)))


@contextmanager
def plan(context: Context) -> Iterator[Plan]:
    notes = []
    # Small matrices do not reach an accelerator's tensor cores; only a plain loss of speed
    # means that there is no fast path.
    factor = slowdown(context.device)
    if factor > 2:
        batch_size = capped_batch_size(context, factor)
        dtype = str(context.device.low_precision).removeprefix("torch.")
        notes.append(
            f"this device has no fast path for {dtype}: the products of a linear layer take "
            f"{factor:.0f} times as long as in float32; both sides were measured at batch "
            f"{batch_size} to bound the time"
        )
        context = replace(context, size=replace(context.size, batch_size=batch_size))
    yield Plan(
        [
            training_variant(context, name="mixed precision", mixed=True),
            replace(training_variant(context), role="reference"),
        ],
        notes,
    )
