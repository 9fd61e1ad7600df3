"""What do evaluation and saving cost? Timed a few times each, so that any cadence can be told."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch

from diagnose.measure.ranks.job.member import Member, describe_error
from diagnose.records.header import Reading
from diagnose.records.ranks import CadenceCost
from diagnose.workload import Batch, Network

EVALUATED_BATCHES = 8
REPEATS = 3


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
