"""What does a job cost beside the time of its steps? Evaluation, saving, and each rank's power."""

from __future__ import annotations

import math
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, Subset

from diagnose.measure.gpu import nvml
from diagnose.measure.gpu.sampler import Sampler
from diagnose.measure.machine.describe import identities
from diagnose.measure.ranks.job.member import Member, describe_error
from diagnose.measure.stages.plan import Context
from diagnose.measure.stages.steps import to_device
from diagnose.records.codec import from_dict, to_dict
from diagnose.records.header import Reading
from diagnose.records.ranks import CadenceCost
from diagnose.workload import Network

# Without a part of the data for evaluation, so many batches stand in for it.
EVALUATED_BATCHES = 8
REPEATS = 3
ENOUGH_SECONDS = 1.0
# NVML averages power over up to a second; three of them hold two whole averages.
WATCHED_SECONDS = 3.0


def open_evaluation(context: Context) -> DataLoader[Any]:
    """The whole dev part of the data in its order, the short last batch too."""
    job, size = context.workload, context.size
    rows: Dataset[Any]
    if job.evaluation_rows is not None:
        rows = job.evaluation_rows(size, context.data)
    else:
        whole: Any = context.dataset(next(iter(job.datasets)))
        rows = Subset(whole, range(min(len(whole), EVALUATED_BATCHES * size.batch_size)))
    return DataLoader(rows, size.batch_size, collate_fn=job.collate)


def measure_cadence(
    member: Member,
    network: Network,
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    rows: DataLoader[Any] | None,
) -> CadenceCost:
    """A forward pass over the rows for evaluation, and a file of weights and optimiser state.

    On rank 0, as most jobs do, while the others wait.
    """
    member.at("evaluation")
    if rows is None:
        evaluation, count = Reading(None, "this job has no dataset to evaluate on"), 0
    else:
        device = member.device.torch
        evaluation = _repeat(member, lambda: _evaluate(network, model, rows, device, member))
        count = len(rows.dataset)  # type: ignore[arg-type]
    member.at("checkpoint")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "checkpoint.pt"

        def save() -> None:
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, path)

        saving = _repeat(member, save)
    return CadenceCost(evaluation, saving, count)


@torch.no_grad()
def _evaluate(
    network: Network,
    model: torch.nn.Module,
    rows: DataLoader[Any],
    device: torch.device,
    member: Member,
) -> None:
    forward = network.forward or network.loss
    was_training = model.training
    model.eval()
    try:
        for batch in rows:
            forward(model, to_device(batch, device))
            member.still()
    finally:
        model.train(was_training)


def _repeat(member: Member, work: Callable[[], object]) -> Reading:
    """The median. The ranks meet every time, or the waiting ones would lose patience."""
    device, seconds, failure = member.device, [], ""
    for _ in range(REPEATS):
        if member.rank == 0 and not failure:
            device.synchronize()
            began = device.now()
            try:
                work()
            # torch's writer turns a full disk into a RuntimeError.
            except (OSError, RuntimeError) as error:
                failure = f"it {describe_error(error, member.timeout_seconds)[1]}"
            device.synchronize()
            seconds.append(device.now() - began)
        member.still()
        # A whole evaluation may take long, and then once is precise enough.
        if member.broadcast(bool(failure) or sum(seconds) > ENOUGH_SECONDS):
            break
    if failure or not seconds:
        return Reading(None, failure or "measured on rank 0")
    return Reading(statistics.median(seconds))


def measure_watts(member: Member, step: Callable[[], object], step_seconds: float) -> list[Reading]:
    """By rank, over as many steps as fill the time; `step_seconds` is the same on every rank."""
    member.at("power of the full step")
    mine = _watch(member, step, max(1, math.ceil(WATCHED_SECONDS / step_seconds)))
    return [from_dict(Reading, each, "watts") for each in member.gather_objects(to_dict(mine))]


def _watch(member: Member, step: Callable[[], object], steps: int) -> Reading:
    device = member.device
    if device.is_cpu:
        return Reading(None, "the CPU has no NVML")
    own = identities(device.kind)[member.local_rank]
    with nvml.open_session() as session, Sampler(session, own) as sampler:
        device.synchronize()
        began = device.now()
        for _ in range(steps):
            step()
            member.still()
        device.synchronize()
        return sampler.watts_between(began, device.now())
