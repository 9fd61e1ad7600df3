"""The small parts that stages are made of: batches, loaders, counted FLOPs."""

from __future__ import annotations

import subprocess
import sys
import time
from collections import UserDict
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_sequence
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from diagnose.measure.clock import SMOKE
from diagnose.measure.machine.device import open_device
from diagnose.measure.stage import count_flops, cpu_seconds, measure_plan
from diagnose.measure.stages.batches import LoaderConfig, make_loader, tensor_bytes
from diagnose.measure.stages.plan import NO_ARITHMETIC, Context, Plan, Variant
from diagnose.measure.stages.steps import to_device
from diagnose.workload import Network, Size, Workload

META = torch.device("meta")


def test_every_usual_kind_of_batch_is_moved() -> None:
    row = torch.zeros(2)
    moved = to_device({"a": row, "b": [row, (row, "text")]}, META)
    assert moved["a"].device == moved["b"][0].device == moved["b"][1][0].device == META
    assert moved["b"][1][1] == "text"
    assert to_device(UserDict(a=row), META)["a"].device == META  # like HF's BatchEncoding
    assert to_device(pack_sequence([row]), torch.device("cpu")).data.device.type == "cpu"


def test_the_bytes_of_a_nested_batch() -> None:
    row = torch.zeros(4)
    assert tensor_bytes({"a": row, "b": [row, (row, "text")]}) == 48
    assert tensor_bytes(UserDict(a=row)) == 16


@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_attention_is_counted_with_and_without_dropout(dropout: float) -> None:
    """Two fused and unfused paths of the CPU; both do two products of 2·B·H·L·L·D each."""
    query = torch.randn(2, 3, 16, 8, requires_grad=True)
    forward = 2 * 2 * 2 * 3 * 16 * 16 * 8

    def attend() -> torch.Tensor:
        return nn.functional.scaled_dot_product_attention(query, query, query, dropout_p=dropout)

    assert count_flops(attend) == forward
    backward = count_flops(lambda: torch.autograd.backward(attend().sum())) - forward
    assert backward in (2 * forward, forward * 5 // 2)  # unfused, or fused with recomputation


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


def test_a_stage_records_the_cores_that_the_job_kept_busy() -> None:
    def work() -> None:
        ended = time.process_time() + 0.02
        while time.process_time() < ended:
            pass

    def cores(step: Callable[[], None]) -> float:
        variant = Variant("x", step, settings={}, flops_per_step=NO_ARITHMETIC)
        made = measure_plan(
            Plan([variant]),
            open_context(),
            key="x",
            title="X",
            energy_period_seconds=0.0,
            progress=lambda *seen: None,
        )
        assert made.cpu_cores is not None
        return made.cpu_cores.value or 0.0

    assert cores(work) > 2 * cores(lambda: time.sleep(0.02))


@pytest.mark.child
def test_the_cpu_time_of_loader_processes_counts() -> None:
    own, before = time.process_time(), cpu_seconds()
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as busy:
        try:
            deadline = time.monotonic() + 30
            while cpu_seconds() - before < 0.3 + time.process_time() - own:
                assert time.monotonic() < deadline
                time.sleep(0.05)
        finally:
            busy.kill()
    assert cpu_seconds() - before < 0.3 + time.process_time() - own, "it has ended"
