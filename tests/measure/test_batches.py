"""Does the loader bring the rows that it should, in the order that it should?"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from diagnose.measure.clock import SMOKE
from diagnose.measure.machine.device import open_device
from diagnose.measure.stages.batches import LoaderConfig, make_loader
from diagnose.measure.stages.plan import Context
from diagnose.workload import Network, Size, Workload

ROWS, RANKS, SEED = 24, 2, 5
SIZE = Size(batch_size=5, sequence_length=1)
CONFIG = LoaderConfig(workers=0, storage="dataset", pin_memory=False)


def open_context() -> Context:
    workload = Workload(
        name="numbers",
        sizes={"tiny": SIZE},
        model=Network(build=lambda size: nn.Linear(1, 1), loss=lambda model, batch: batch.sum()),
        synthetic_batch=lambda size, device: torch.zeros(size.batch_size),
        datasets={"dataset": lambda size, path: TensorDataset(torch.arange(ROWS))},
    )
    return Context(open_device("cpu"), workload, "tiny", SIZE, SMOKE, SEED)


def batches(loader: DataLoader[Any]) -> list[list[int]]:
    return [rows.tolist() for (rows,) in loader]


def test_without_a_sampler_the_seed_shuffles_and_every_batch_is_full() -> None:
    context = open_context()
    first, again, other = (
        batches(make_loader(context, CONFIG, seed)) for seed in (SEED, SEED, SEED + 1)
    )
    assert first == again != other
    assert [len(rows) for rows in first] == [5, 5, 5, 5]
    seen = [row for rows in first for row in rows]
    assert len(set(seen)) == 20
    assert seen != sorted(seen)


def test_ranks_share_no_row() -> None:
    context = open_context()
    dataset = context.dataset(CONFIG.storage)
    shares = [
        batches(make_loader(context, CONFIG, SEED, DistributedSampler(dataset, RANKS, rank)))
        for rank in range(RANKS)
    ]
    assert [len(share) for share in shares] == [2, 2]
    first, second = ({row for rows in share for row in rows} for share in shares)
    assert len(first) == len(second) == 10
    assert not first & second
