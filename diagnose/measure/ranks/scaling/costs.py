"""What does a job cost beside the time of its steps? Evaluation, saving, and each rank's power."""

from __future__ import annotations

import math
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch

from diagnose.measure.gpu import nvml
from diagnose.measure.gpu.sampler import Sampler
from diagnose.measure.machine.describe import identities
from diagnose.measure.ranks.job.member import Member, describe_error
from diagnose.records.codec import from_dict, to_dict
from diagnose.records.header import Reading
from diagnose.records.ranks import CadenceCost
from diagnose.workload import Batch, Network

EVALUATED_BATCHES = 8
REPEATS = 3
# NVML averages power over up to a second; three of them hold two whole averages.
WATCHED_SECONDS = 3.0


def measure_cadence(
    member: Member,
    network: Network,
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    next_batch: Callable[[], Batch],
    batch_size: int,
) -> CadenceCost:
    """A forward pass over real batches, and a file of weights and optimiser state.

    On rank 0, as most jobs do, while the others wait.
    """
    member.at("evaluation")
    evaluation = _repeat(member, lambda: _evaluate(network, model, next_batch))
    member.at("checkpoint")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "checkpoint.pt"

        def save() -> None:
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, path)

        saving = _repeat(member, save)
    return CadenceCost(evaluation, saving, EVALUATED_BATCHES * batch_size)


@torch.no_grad()
def _evaluate(network: Network, model: torch.nn.Module, next_batch: Callable[[], Batch]) -> None:
    forward = network.forward or network.loss
    was_training = model.training
    model.eval()
    try:
        for _ in range(EVALUATED_BATCHES):
            forward(model, next_batch())
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
        member.barrier()
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
