"""What does one stage give? Its variants are primed, timed together, and recorded."""

from __future__ import annotations

import contextlib
import gc
import importlib
from collections.abc import Callable, Sequence
from dataclasses import replace

import psutil
import torch
from torch.utils.flop_counter import FlopCounterMode

from diagnose.measure.clock import Progress, measure
from diagnose.measure.lines.traffic import Traffic
from diagnose.measure.machine.device import Device
from diagnose.measure.stages import Stage
from diagnose.measure.stages.plan import Context, InvalidStage, Plan, SkipStage, Variant
from diagnose.records.header import Reading
from diagnose.records.run import Measurement, StageResult, Timing

# An energy counter moves in steps; a slot of twenty of its periods keeps the error of reading
# it at a random phase near two percent a slot, and far below that over all slots.
ENERGY_PERIODS_PER_SLOT = 20


def _attention_flops(query: Sequence[int], key: Sequence[int], *_: object, **__: object) -> int:
    """Two products of queries, keys and values: (batch, heads, length, width) each."""
    batch, heads, queries, width = query
    return 2 * 2 * batch * heads * queries * key[2] * width


def _attention_backward_flops(
    _gradient: object, query: Sequence[int], key: Sequence[int], *_: object, **__: object
) -> int:
    """Five products: the forward one again, and four gradients."""
    return _attention_flops(query, key) * 5 // 2


# The CPU's fused attention, which torch does not count by itself.
UNCOUNTED_OPERATORS = {
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: _attention_flops,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward: _attention_backward_flops,
}


def run_stage(
    stage: Stage,
    context: Context,
    *,
    energy_period_seconds: float = 0.0,
    progress: Progress = lambda name, slots, seconds: None,
) -> StageResult:
    """Measure one stage; skipping and invalidity are results, other exceptions are not."""
    device, began = context.device, context.device.now()
    try:
        with importlib.import_module(stage.module).plan(context) as plan:
            made = measure_plan(
                plan,
                context,
                key=stage.key,
                title=stage.title,
                energy_period_seconds=energy_period_seconds,
                progress=progress,
            )
            return replace(made, seconds=device.now() - began)
    except SkipStage as skip:
        return StageResult(stage.key, stage.title, "skipped", str(skip))
    except InvalidStage as invalid:
        return StageResult(
            stage.key, stage.title, "invalid", str(invalid), seconds=device.now() - began
        )


def measure_plan(
    plan: Plan,
    context: Context,
    *,
    key: str,
    title: str,
    energy_period_seconds: float,
    progress: Progress,
) -> StageResult:
    """Prime and time the variants of a plan together."""
    # A smoke run has no slots to lengthen: its numbers mean nothing, its energy neither.
    energy_slot = (
        ENERGY_PERIODS_PER_SLOT * energy_period_seconds * bool(context.effort.slot_seconds)
    )
    primed = [_prime(context.device, variant) for variant in plan.variants]
    began, used = context.device.now(), cpu_seconds()
    tracks = measure(
        plan.variants,
        context.effort,
        context.device,
        seed=context.seed,
        least_slot_seconds=energy_slot,
        progress=progress,
    )
    cores = (cpu_seconds() - used) / (context.device.now() - began)
    return StageResult(
        key,
        title,
        "done",
        measurements=_record(plan, primed, [track.timing() for track in tracks], context.device),
        notes=tuple(plan.notes),
        # What a process used that ended meanwhile is no longer known.
        cpu_cores=Reading(cores) if cores >= 0 else Reading(None, "a process of the job ended"),
    )


def cpu_seconds() -> float:
    """Of this process and of all that it has started and that still run."""
    own, seconds = psutil.Process(), 0.0
    for each in (own, *own.children(recursive=True)):
        with contextlib.suppress(psutil.Error):
            times = each.cpu_times()
            seconds += times.user + times.system
    return seconds


def count_flops(step: Callable[[], object]) -> int:
    with FlopCounterMode(display=False, custom_mapping=UNCOUNTED_OPERATORS) as counter:
        step()
    return int(counter.get_total_flops())


def _prime(device: Device, variant: Variant) -> tuple[Reading, Reading, Reading]:
    """FLOPs, bytes and peak memory of one step, apart from the timing: counting slows it down.

    The second step counts, because the first creates the optimizer's state.
    """
    variant.before_slot()
    variant.step()
    gc.collect()
    device.synchronize()
    device.reset_peak()
    nbytes = variant.bytes_per_step
    if variant.flops_per_step is not None:
        variant.step()
        flops = variant.flops_per_step
    else:
        with Traffic(device.torch.type) as traffic:
            total = count_flops(variant.step)
        flops = Reading(float(total)) if total else Reading(None, "no counted operator ran")
        if nbytes.value is None and traffic.nbytes:
            nbytes = Reading(float(traffic.nbytes))
    device.synchronize()
    variant.after_slot()
    return flops, nbytes, device.peak_bytes()


def _record(
    plan: Plan,
    primed: Sequence[tuple[Reading, Reading, Reading]],
    timings: Sequence[Timing],
    device: Device,
) -> tuple[Measurement, ...]:
    reason = "the stage ran on the CPU, which has no NVML" if device.is_cpu else "not sampled"
    return tuple(
        Measurement(
            name=variant.name,
            role=variant.role,
            settings=variant.settings,
            timing=timing,
            samples_per_step=variant.samples_per_step,
            flops_per_step=flops,
            bytes_per_step=nbytes,
            peak_bytes=peak,
            gpus_reason=reason,
        )
        for variant, (flops, nbytes, peak), timing in zip(
            plan.variants, primed, timings, strict=True
        )
    )
