"""What does it cost to load real data, beyond training on the same data without loading?"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from diagnose.measure.stages.batches import (
    BatchSource,
    LoaderConfig,
    feeding_config,
    keep_resident,
    open_batches,
)
from diagnose.measure.stages.plan import Context, Plan, Variant
from diagnose.measure.stages.precision import slowdown
from diagnose.measure.stages.steps import TrainingStep, to_device
from diagnose.measure.stages.training import training_variant
from diagnose.workload import Network


def fed_variant(
    context: Context,
    network: Network,
    source: BatchSource,
    config: LoaderConfig,
    *,
    name: str,
    mixed: bool,
) -> Variant:
    """A training step that takes its batch from the loader and copies it to the device."""
    device = context.device.torch

    def next_batch() -> object:
        return to_device(source.next(), device, non_blocking=config.pin_memory)

    step = TrainingStep(context, network, next_batch, mixed=mixed)

    def before_slot() -> None:
        step.prepare()
        source.drain()

    def after_slot() -> None:
        step.check()
        source.settle()

    return Variant(
        name=name,
        step=step,
        settings=context.settings(step.dtype, **config.settings),
        samples_per_step=context.size.batch_size,
        before_slot=before_slot,
        after_slot=after_slot,
    )


def usual_precision(context: Context) -> bool:
    """Mixed, as the job trains, unless this device has no fast path for it."""
    return not context.device.is_cpu and slowdown(context.device) <= 2


@contextmanager
def plan(context: Context) -> Iterator[Plan]:
    config = feeding_config(context)
    mixed = usual_precision(context)
    with open_batches(context, config) as source:
        fed = fed_variant(context, context.backbone, source, config, name="real data", mixed=mixed)
        resident = training_variant(
            context, name="resident batches", mixed=mixed, next_batch=keep_resident(context, source)
        )
        synthetic = training_variant(context, name="synthetic batch", mixed=mixed)
        yield Plan(
            [fed, replace(resident, role="reference"), replace(synthetic, role="reference")],
            [f"loader: {config.name}, the fastest of the loader stage"]
            if context.hints.loader
            else [f"loader: {config.name}; the loader stage was not measured"],
        )
