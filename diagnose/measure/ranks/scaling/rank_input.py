"""Where does each rank get its batches? From its own share of the data, loaded as a job does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, default_collate

from diagnose.measure.clock import nothing
from diagnose.measure.ranks.job.member import Member
from diagnose.measure.stages.batches import (
    BatchSource,
    LoaderConfig,
    feeding_config,
    keep_resident,
    make_loader,
)
from diagnose.measure.stages.plan import Context
from diagnose.measure.stages.steps import to_device
from diagnose.records.header import Setting
from diagnose.workload import Batch


@dataclass(frozen=True)
class RankInput:
    """Batches of this rank, through the loader and kept on the device."""

    settings: dict[str, Setting]
    resident: Callable[[], Batch]
    loaded: Callable[[], Batch]
    drain: Callable[[], object] = nothing
    settle: Callable[[], object] = nothing


def open_input(context: Context, member: Member, workers: int | None = None) -> RankInput:
    """A loader with DistributedSampler; without a dataset that allows one, the synthetic batch."""
    obstacle = find_obstacle(context, member.world_size)
    if obstacle:
        batch = context.workload.synthetic_batch(context.size, context.device.torch)
        return RankInput(
            settings={"input": f"one synthetic batch: {obstacle}"},
            resident=lambda: batch,
            loaded=lambda: batch,
        )
    config = feeding_config(context, member.local_world_size)
    if workers is not None:
        config = replace(config, workers=workers)
    source = BatchSource(_open_loader(context, config, member), config.batches_in_flight)

    def loaded() -> Batch:
        return to_device(source.next(), context.device.torch, non_blocking=config.pin_memory)

    return RankInput(
        settings={"input": "DistributedSampler", **config.settings},
        resident=keep_resident(context, source),
        loaded=loaded,
        drain=source.drain,
        settle=source.settle,
    )


def own_batches(context: Context, member: Member) -> Callable[[int, int], Sequence[Batch]]:
    """So many batches of so many samples, the same whenever asked.

    Every rank has its own samples, or equal gradients on all ranks would prove nothing.
    """

    def batches(count: int, batch_size: int) -> Sequence[Batch]:
        obstacle = find_obstacle(context, member.world_size)
        if obstacle:
            size = replace(context.size, batch_size=batch_size)
            return [context.workload.synthetic_batch(size, context.device.torch)] * count
        dataset = context.dataset(_storage(context))
        collate = context.workload.collate or default_collate
        first = member.rank * count * batch_size
        rows = [(first + index) % len(dataset) for index in range(count * batch_size)]
        return [
            to_device(collate([dataset[row] for row in rows[at : at + batch_size]]), device)
            for at in range(0, len(rows), batch_size)
        ]

    device = context.device.torch
    return batches


def find_obstacle(context: Context, ranks: int) -> str:
    if not context.workload.datasets:
        return f"workload {context.workload.name} has no datasets"
    dataset = context.dataset(_storage(context))
    if isinstance(dataset, IterableDataset):
        return "an IterableDataset cannot be divided among ranks by a sampler"
    if len(dataset) // ranks < context.size.batch_size:
        return f"{len(dataset)} rows are fewer than one batch for each of {ranks} ranks"
    return ""


def _storage(context: Context) -> str:
    return next(iter(context.workload.datasets))


def _open_loader(context: Context, config: LoaderConfig, member: Member) -> DataLoader[Any]:
    dataset = context.dataset(config.storage)
    sampler: DistributedSampler[Any] = DistributedSampler(
        dataset, member.world_size, member.rank, shuffle=True, seed=context.seed % 2**31
    )
    return make_loader(context, config, context.seed + member.rank, sampler)
