"""How fast is the forward pass alone, with nothing to wait for?"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from diagnose.measure.stages.plan import Context, Plan, Variant
from diagnose.measure.stages.steps import InferenceStep


def inference_variant(context: Context) -> Variant:
    batch = context.workload.synthetic_batch(context.size, context.device.torch)
    step = InferenceStep(context, context.backbone, lambda: batch)
    return Variant(
        name="inference",
        step=step,
        settings=context.settings(step.dtype),
        samples_per_step=context.size.batch_size,
        before_slot=step.prepare,
    )


@contextmanager
def plan(context: Context) -> Iterator[Plan]:
    yield Plan([inference_variant(context)])
