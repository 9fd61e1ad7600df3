"""What can the measuring process be asked about batch sizes? Each request with its answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from diagnose.measure.batch_size.inputs import describe_inputs
from diagnose.measure.batch_size.probe import (
    measure_loader,
    measure_sweep,
    open_step,
    probe_batch,
    read_available,
    sized,
)
from diagnose.measure.clock import Progress
from diagnose.measure.stages.plan import Context
from diagnose.measure.stages.real_data import usual_precision
from diagnose.records.codec import from_dict, to_dict
from diagnose.records.header import Reading

Request: TypeAlias = Mapping[str, Any]


def _describe(context: Context, request: Request, _: Progress) -> object:
    """What a step is, and what all probes must have in common to be compared.

    Precision is decided once: it is measured, and a probe in another one would not compare.
    """
    available = read_available(context, request["sharing"])
    mixed = usual_precision(context)
    task = open_step(context, mixed=mixed).task
    return {"available": to_dict(available), "task": task, "mixed": mixed}


def _inputs(context: Context, request: Request, _: Progress) -> object:
    batch = context.size.batch_size
    return describe_inputs(sized(context, batch, request["max_crops"]))


def _probe(context: Context, request: Request, _: Progress) -> object:
    job = sized(context, request["batch"], request["max_crops"])
    available = from_dict(Reading, request["available"], "available")
    probe, clean = probe_batch(
        job, available, mixed=request["mixed"], enough_seconds=request["enough_seconds"]
    )
    return {"probe": to_dict(probe), "clean": clean}


def _sweep(context: Context, request: Request, progress: Progress) -> object:
    jobs = [sized(context, batch, request["max_crops"]) for batch in request["batches"]]
    return to_dict(
        measure_sweep(
            jobs,
            request["limit_seconds"],
            request["energy_period_seconds"],
            progress,
            mixed=request["mixed"],
        )
    )


def _loader(context: Context, request: Request, progress: Progress) -> object:
    job = sized(context, context.size.batch_size, request["max_crops"])
    return to_dict(measure_loader(job, request["limit_seconds"], progress))


ANSWERS: Mapping[str, Callable[[Context, Request, Progress], object]] = {
    "describe": _describe,
    "inputs": _inputs,
    "probe": _probe,
    "sweep": _sweep,
    "loader": _loader,
}
