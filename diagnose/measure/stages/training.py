"""What do the backward pass and the optimiser add to the forward pass?"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from diagnose.measure.stages.inference import inference_variant
from diagnose.measure.stages.plan import Context, Plan, Variant
from diagnose.measure.stages.steps import TrainingStep
from diagnose.workload import Batch


def training_variant(
    context: Context,
    *,
    name: str = "training",
    mixed: bool = False,
    next_batch: Callable[[], Batch] | None = None,
) -> Variant:
    """A training step of the backbone, on a synthetic batch unless batches are given."""
    if next_batch is None:
        batch = context.workload.synthetic_batch(context.size, context.device.torch)

        def next_batch() -> Batch:
            return batch

    step = TrainingStep(context, context.backbone, next_batch, mixed=mixed)
    return Variant(
        name=name,
        step=step,
        settings=context.settings(step.dtype),
        samples_per_step=context.size.batch_size,
        before_slot=step.prepare,
        after_slot=step.check,
    )


@contextmanager
def plan(context: Context) -> Iterator[Plan]:
    reference = replace(inference_variant(context), role="reference")
    yield Plan([training_variant(context), reference])
