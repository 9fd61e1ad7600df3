"""What does it cost to load real data, beyond training on the same data without loading?"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from diagnose.measure.stages.batches import (
    BatchSource,
    LoaderConfig,
    batch_bytes,
    fastest_config,
    needed_bytes,
    open_batches,
    require_dataset,
    shared_memory_shortage,
    tensor_bytes,
)
from diagnose.measure.stages.plan import Context, Plan, Variant
from diagnose.measure.stages.precision import slowdown
from diagnose.measure.stages.steps import TrainingStep, to_device
from diagnose.measure.stages.training import training_variant
from diagnose.workload import Batch, Network

# Enough that no batch is special, few enough to fit beside the model.
RESIDENT_BATCHES = 8
MOST_RESIDENT_BYTES = 256 * 2**20


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


def feeding_config(context: Context) -> LoaderConfig:
    """The fastest loader that /dev/shm allows, else loading in the training process."""
    require_dataset(context)
    config = fastest_config(context)
    wanted = needed_bytes(config, batch_bytes(context, config.storage))
    if config.workers and shared_memory_shortage(wanted):
        config = replace(config, workers=0)
    return config


def keep_resident(context: Context, source: BatchSource) -> Callable[[], Batch]:
    """Real batches that are already on the device, over and over: the yardstick for loading.

    A synthetic batch would not do: what is in a batch (padding, labels) changes a step's cost.
    """
    batches: list[Batch] = []
    held = 0
    while len(batches) < RESIDENT_BATCHES and (not batches or held < MOST_RESIDENT_BYTES):
        batches.append(to_device(source.next(), context.device.torch))
        held += tensor_bytes(batches[-1])
    return itertools.cycle(batches).__next__


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
