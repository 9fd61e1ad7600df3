"""Does mixed precision make this device faster? On some it is a hundred times slower."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch

from diagnose.measure.machine.device import Device
from diagnose.measure.machine.products import time_products
from diagnose.measure.stages.plan import Context, Plan
from diagnose.measure.stages.training import training_variant

# Without a fast path a step may take so long; the batch is cut until it should.
LONGEST_STEP_SECONDS = 0.5


def slowdown(device: Device) -> float:
    """How many times longer a linear layer's products take in low precision than in float32."""
    low, full = (time_products(device, each) for each in (device.low_precision, torch.float32))
    return low.seconds_per_flop / full.seconds_per_flop


def capped_batch_size(context: Context, factor: float) -> int:
    """The largest batch whose mixed-precision step should stay within the limit."""
    if context.hints.training_seconds is None:
        return 1
    share = LONGEST_STEP_SECONDS / (context.hints.training_seconds * factor)
    return max(1, min(context.size.batch_size, int(context.size.batch_size * share)))


@contextmanager
def plan(context: Context) -> Iterator[Plan]:
    notes = []
    # Only a plain loss of speed means that there is no fast path.
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
