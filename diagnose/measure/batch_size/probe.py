"""What does one probe do? A real forward pass and real steps of one batch size.

One step alone says too little: the optimiser's state appears with the first training step, and
only the second has activations, gradients and state in memory at once. A job that writes answers
does not train: its steps are whole answers, whose cache grows beyond what a forward pass needs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from typing import Literal

import torch

from diagnose.measure.batch_size.answers import hardest_batch, weights_dtype
from diagnose.measure.batch_size.memory import (
    available_bytes,
    guard,
    held_bytes,
    peak_bytes,
    release,
    swapped_bytes,
)
from diagnose.measure.clock import Progress, nothing
from diagnose.measure.machine.out_of_memory import is_out_of_memory
from diagnose.measure.stage import measure_plan
from diagnose.measure.stages.batches import feeding_config, loading_variant, open_batches
from diagnose.measure.stages.plan import NOT_COUNTED, Context, Plan, SkipStage, Variant
from diagnose.measure.stages.steps import InferenceStep, TrainingStep, to_device
from diagnose.measure.words import one_sentence
from diagnose.records.batch_size import Probe
from diagnose.records.header import Reading
from diagnose.records.run import StageResult
from diagnose.workload import Batch, Decoding

TIMED_STEPS = 3
# Workspaces of the libraries and stacks of their threads; a tensor of a failed step is larger.
LEAK_TOLERANCE_BYTES = 64 * 2**20

Task = Literal["training step", "inference", "generation"]


class HeldBatch:
    """One batch, made when it is first needed."""

    def __init__(self, make: Callable[[], Batch]) -> None:
        self._make = make
        self._batches: list[Batch] = []

    def get(self) -> Batch:
        if not self._batches:
            self._batches.append(self._make())
        return self._batches[0]

    def forget(self) -> None:
        self._batches.clear()


@dataclass(frozen=True)
class SizedStep:
    """One step of one batch size: what it is, and what it is computed in."""

    task: Task
    run: Callable[[], object]
    dtype: str
    batch: HeldBatch
    ready: Callable[[], object] = nothing  # put the model into the right mode
    check: Callable[[], object] = nothing

    def prepare(self) -> None:
        self.batch.get()
        self.ready()

    def end_slot(self) -> None:
        """Drop the batch too, so that it is not counted with the next size."""
        self.check()
        self.batch.forget()


def sized(context: Context, batch: int, max_crops: int | None) -> Context:
    """The same job with another batch size; the model that is already built is kept."""
    shape = dict(context.size.shape)
    size = replace(context.size, batch_size=batch, shape=shape)
    if max_crops is None:
        return replace(context, size=size)
    shape["max_crops"] = max_crops
    # A dataset that is already open has the tiles of another cap.
    return replace(context, size=size, _datasets={})


def open_step(context: Context, *, mixed: bool, ddp: bool = False) -> SizedStep:
    """The job's own step: writing answers, else training if there is something to train."""
    if context.workload.generation is not None:
        return _open_generation(context, context.size.shape["new_tokens"])
    try:
        context.optimizer(context.workload.model)
    except SkipStage:
        return _open_forward(context)
    batch = _hold_synthetic(context)
    loss = None
    if ddp:
        # Imported here: it loads all that torch has for several ranks.
        from diagnose.measure.batch_size.data_parallel import loss_under_ddp

        loss = partial(loss_under_ddp, context)
    step = TrainingStep(context, context.workload.model, batch.get, mixed=mixed, loss=loss)
    return SizedStep("training step", step, step.dtype, batch, step.prepare, step.check)


def _open_forward(context: Context) -> SizedStep:
    batch = _hold_synthetic(context)
    step = InferenceStep(context, context.workload.model, batch.get)
    return SizedStep("inference", step, step.dtype, batch, step.prepare)


def _hold_synthetic(context: Context) -> HeldBatch:
    return HeldBatch(lambda: context.workload.synthetic_batch(context.size, context.device.torch))


def _open_generation(context: Context, new_tokens: int) -> SizedStep:
    """Answers of the full length to the hardest question: no mix of others needs more memory."""
    generation = context.workload.generation
    assert generation is not None
    generator = generation.wrap(context.model(context.workload.model), context.size)
    decoding = Decoding(new_tokens, natural_stop=False)
    batch = HeldBatch(lambda: to_device(hardest_batch(context, generator), context.device.torch))

    def run() -> None:
        generator.generate(batch.get(), decoding)

    return SizedStep("generation", run, weights_dtype(generator, context.device), batch)


def probe_batch(
    context: Context,
    available: Reading,
    *,
    mixed: bool,
    enough_seconds: float = inf,
    ddp: bool = False,
) -> tuple[Probe, bool]:
    """Whether the steps run, their peak, and whether the process can be used for another probe.

    Any error but a lack of memory is the caller's to handle.
    """
    device, batch = context.device, context.size.batch_size
    release(device)
    before, swapped = held_bytes(device), swapped_bytes(device)
    guard(device, available.value)
    device.reset_peak()
    seconds: list[float] = []
    refusal = ""
    try:
        _run_steps(context, seconds, enough_seconds, mixed=mixed, ddp=ddp)
    except Exception as error:
        if not is_out_of_memory(error, torch.OutOfMemoryError):
            raise
        refusal = one_sentence(str(error))
    # Only here is the exception gone, and with it the frames that held the tensors.
    peak = peak_bytes(device)
    swapped = swapped_bytes(device) - swapped
    release(device)
    if swapped > 0 and not refusal:
        reason = f"{swapped / 1e6:.1f} MB of it were moved to the disk"
        return Probe(batch, "spills", peak, available, tuple(seconds), reason), True
    if not refusal:
        return Probe(batch, "fits", peak, available, tuple(seconds)), True
    # The optimiser's two moments and the gradients may have come to stay.
    state = 3 * sum(each.nbytes for each in context.model(context.workload.model).parameters())
    clean = held_bytes(device) <= before + state + LEAK_TOLERANCE_BYTES
    return Probe(batch, "out of memory", peak, available, reason=refusal), clean


def _run_steps(
    context: Context, seconds: list[float], enough_seconds: float, *, mixed: bool, ddp: bool
) -> None:
    """The second step tells the memory; the others only the time, if there is some left."""
    device = context.device
    first = device.now()
    # A probe that failed in its backward pass has left gradients.
    context.model(context.workload.model).zero_grad()
    _run_forward(context)
    step = open_step(context, mixed=mixed, ddp=ddp)
    step.prepare()
    for number in range(1 + TIMED_STEPS):
        device.synchronize()
        began = device.now()
        step.run()
        device.synchronize()
        if number:
            seconds.append(device.now() - began)
            if device.now() - first > enough_seconds:
                return


def _run_forward(context: Context) -> None:
    # The first token of an answer is the forward pass over its question.
    writes = context.workload.generation is not None
    step = _open_generation(context, new_tokens=1) if writes else _open_forward(context)
    step.prepare()
    step.run()


def read_available(context: Context, sharing: int) -> Reading:
    release(context.device)
    return available_bytes(context.device, sharing)


def measure_sweep(
    contexts: list[Context],
    limit_seconds: float,
    energy_period_seconds: float,
    progress: Progress,
    *,
    mixed: bool,
    ddp: bool = False,
) -> StageResult:
    """Every batch size in the same interleaved blocks, smallest first.

    On the CPU freed memory stays resident, so only in this order is a peak that of its own size.
    """
    release(contexts[0].device)
    variants = []
    for context in contexts:
        step = open_step(context, mixed=mixed, ddp=ddp)
        variants.append(
            Variant(
                name=f"batch {context.size.batch_size}",
                step=step.run,
                settings=context.settings(step.dtype),
                samples_per_step=context.size.batch_size,
                flops_per_step=NOT_COUNTED,
                before_slot=step.prepare,
                after_slot=step.end_slot,
            )
        )
    effort = replace(contexts[0].effort, limit_seconds=limit_seconds)
    return measure_plan(
        Plan(variants),
        replace(contexts[0], effort=effort),
        key="sweep",
        title="Batch sizes",
        energy_period_seconds=energy_period_seconds,
        progress=progress,
    )


def measure_loader(context: Context, limit_seconds: float, progress: Progress) -> StageResult:
    """How fast samples arrive when nothing else has to be done."""
    title = "Loader"
    effort = replace(
        context.effort,
        limit_seconds=min(context.effort.limit_seconds, limit_seconds),
        warmup_limit_seconds=min(context.effort.warmup_limit_seconds, limit_seconds / 2),
    )
    try:
        config = feeding_config(context)
        with open_batches(context, config) as source:
            return measure_plan(
                Plan([loading_variant(context, config, source)]),
                replace(context, effort=effort),
                key="loader",
                title=title,
                energy_period_seconds=0.0,
                progress=progress,
            )
    except SkipStage as skip:
        return StageResult("loader", title, "skipped", str(skip))
