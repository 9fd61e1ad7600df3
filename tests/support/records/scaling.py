"""What does a scaling run look like? Builders of records whose losses are known."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from diagnose.records.experiments import Comparison
from diagnose.records.header import Header, Reading, WorkloadFacts
from diagnose.records.ranks import CadenceCost, Rank, ScalingRecord, Series, SizeResult
from tests.support.records.experiments import BATCH, compare, ended, not_claimed
from tests.support.records.parts import data_facts, machine

BLOCKS = 14
BUCKETS = (8_000_000, 26_000_000, 26_000_000, 20_000_000)
GRADIENTS = sum(BUCKETS)


@dataclass(frozen=True)
class Losses:
    """Seconds of each line of the ledger, as a job without noise would have them."""

    alone_local: float = 0.100
    alone_input: float = 0.010  # what real input adds alone
    optimizer: float = 0.020
    compute: float = 0.015
    input: float = 0.005
    late: float = 0.0  # by which the last rank's own work exceeds the others'
    communication: float = 0.060
    rest: float = 0.002


def rank(number: int, ranks_per_host: int = 2) -> Rank:
    return Rank(
        rank=number,
        local_rank=number % ranks_per_host,
        node=number // ranks_per_host,
        device_name="Xeon",
        numa_node=Reading(0.0),
        torch_version="2.13.0",
        threads=1,
    )


def series_of(
    losses: Losses, ranks: int, blocks: int, steps_per_slot: int, noise: float
) -> tuple[Series, ...]:
    """All series of a job, each slot with its own noise and each block with a common drift."""
    dice = random.Random(f"{losses} {ranks} {blocks} {noise}")
    behind = [0.0] * (ranks - 1) + [losses.late]
    resident = losses.alone_local + losses.compute
    local = resident + losses.alone_input + losses.input
    slowest = local + losses.late
    synchronised = slowest + losses.communication
    alone = losses.alone_local + losses.alone_input
    expected: dict[str, list[float]] = {
        "alone full input": [alone + losses.optimizer],
        "alone local input": [alone],
        "alone local resident": [losses.alone_local],
        "together local resident": [resident + extra for extra in behind],
        "together local input": [local + extra for extra in behind],
        "together synchronised input": [synchronised] * ranks,
        "together full input": [synchronised + losses.optimizer + losses.rest] * ranks,
    }
    drift = [1 + 0.02 * dice.uniform(-1, 1) for _ in range(blocks)] if noise else [1.0] * blocks
    return tuple(
        Series(
            name,
            steps_per_slot,
            tuple(
                tuple(
                    steps_per_slot * seconds * factor * (1 + noise * dice.gauss(0, 1))
                    for factor in drift
                )
                for seconds in by_rank
            )
            + ((),) * (ranks - len(by_rank)),
        )
        for name, by_rank in expected.items()
    )


def all_reduces(nbytes: int, seconds: float, ranks: int = 2) -> SizeResult:
    """Five all-reduces that took exactly so long on the last rank, and less on the others."""
    rows = tuple((seconds * (0.9 if place < ranks - 1 else 1.0),) * 5 for place in range(ranks))
    return SizeResult(nbytes, "bucket", "done", latency_seconds=rows, wrong_before=0, wrong_after=0)


def curve(
    alpha_seconds: float = 1e-3, bytes_per_second: float = 1e9, ranks: int = 2
) -> tuple[SizeResult, ...]:
    return tuple(
        all_reduces(nbytes, alpha_seconds + nbytes / bytes_per_second, ranks)
        for nbytes in sorted({*BUCKETS})
    )


def counted(before: int, after: int) -> Mapping[str, int]:
    return {"all_reduces_before": before, "all_reduces_after": after}


CRASH = "RuntimeError: expect_autograd_hooks_ INTERNAL ASSERT FAILED"


def ddp_options() -> tuple[Comparison, ...]:
    """What a sound run of the DDP options finds on a slow link."""
    return (
        compare("accumulate_2", 1.2, facts=counted(8, 4)),
        compare("accumulate_4", 1.4, facts=counted(16, 4)),
        compare("accumulate_4", 1.0, form="as published", facts=counted(16, 16)),
        compare("accumulate_4x32", 0.9, facts=counted(4, 4)),
        compare("bucket_cap_100", 1.1, facts=counted(4, 2)),
        compare("bucket_cap_200", 1.15, facts=counted(4, 1)),
        compare("bucket_view", 1.0, peaks=(9.0e9, 9.0e9 - GRADIENTS), facts=counted(4, 4)),
        compare("static_graph", 1.0, facts=counted(4, 4)),
        ended("static_graph_no_sync", "failed", CRASH),
        compare("compress_fp16", 1.3, equality=not_claimed(), facts=counted(4, 4)),
        ended("fsdp2", "skipped", "gloo has no reduce-scatter here"),
    )


def scaling_record(
    losses: Losses | None = None,
    ranks: int = 2,
    blocks: int = BLOCKS,
    noise: float = 0.003,
    comparisons: Sequence[Comparison] = (),
    gpus: int = 0,
    link: tuple[float, float] | None = (1e-3, 1e9),
    watts: Sequence[Reading] = (),
) -> ScalingRecord:
    """A run with these losses; `link` is the latency and rate of its all-reduces."""
    return ScalingRecord(
        header=Header(
            tool_version="0.1.0",
            label="xeon",
            created="2025-12-22T10:30Z",
            source="hardware",
            effort="quick",
            seed=7,
            machine=machine(gpus),
        ),
        workload=WorkloadFacts(
            name="dgca",
            size="small",
            settings={"batch_size": BATCH, "sequence_length": 128},
            parameters=20_000_000,
            data=data_facts(),
        ),
        backend="nccl" if gpus else "gloo",
        nodes=1,
        ranks=tuple(rank(number, ranks) for number in range(ranks)),
        samples_per_step=BATCH,
        gradient_bytes=GRADIENTS,
        bucket_bytes=BUCKETS,
        backward_seconds=(0.060, 0.061, 0.059),
        series=series_of(losses or Losses(), ranks, blocks, 3, noise),
        watts=tuple(watts) or (Reading(None, "this machine has no NVIDIA GPU"),) * ranks,
        curve=() if link is None else curve(*link, ranks),
        comparisons=tuple(comparisons),
        cadence=CadenceCost(Reading(6.0), Reading(2.0), 4096),
        complete=True,
    )
