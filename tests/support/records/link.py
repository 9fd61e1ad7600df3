"""What is a measured interconnect made of? Builders of records whose truth is known."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace

from diagnose.analyze.findings import Finding
from diagnose.records.header import Fact, Header, Link, Machine, Reading, Status
from diagnose.records.ranks import (
    BandwidthRecord,
    ByRank,
    Culprit,
    EnvironmentTrial,
    Rank,
    SizeResult,
)
from tests.support.records.parts import machine

SWEEP = tuple(4**power for power in range(5, 15))  # 1 KiB to 256 MiB
FIELD_REPORT = (4_000_000, 40_000_000, 200_000_000)
GRADIENTS = 515_000_000


def sample_times(
    seconds: float, ranks: int = 2, count: int = 20, late: int | None = None, noise: float = 0.02
) -> ByRank:
    """Times by rank; a late one takes twice as long in every iteration."""
    dice = random.Random(f"{seconds} {ranks}")
    return tuple(
        tuple(
            seconds * (2 if rank == late else 1) * (1 + noise * dice.uniform(-1, 1))
            for _ in range(count)
        )
        for rank in range(ranks)
    )


def size_result(
    nbytes: int,
    purpose: str = "sweep",
    alpha: float = 60e-6,
    rate: float = 0.5e9,
    ranks: int = 2,
    late: int | None = None,
) -> SizeResult:
    """An all-reduce that takes alpha + bytes / rate, and nothing but bytes / rate in a window."""
    window = tuple(
        tuple(5 * each for each in times)
        for times in sample_times(nbytes / rate + alpha / 10, ranks, 6, late)
    )
    return SizeResult(
        nbytes=nbytes,
        purpose=purpose,
        status="done",
        latency_seconds=sample_times(alpha + nbytes / rate, ranks, late=late),
        window_seconds=window,
        iterations_per_window=5,
        wrong_before=0,
        wrong_after=0,
    )


def ended(nbytes: int, status: Status, reason: str) -> SizeResult:
    """A size without a bandwidth. Its times are kept: nobody may print them."""
    return replace(size_result(nbytes), status=status, reason=reason)


def sizes(
    alpha: float = 60e-6, rate: float = 0.5e9, ranks: int = 2, late: int | None = None
) -> tuple[SizeResult, ...]:
    return (
        *(size_result(each, "sweep", alpha, rate, ranks, late) for each in SWEEP),
        *(
            size_result(each, f"{each // 10**6} MB of the field report", alpha, rate, ranks, late)
            for each in FIELD_REPORT
        ),
        size_result(GRADIENTS, "all gradients", alpha, rate, ranks, late),
    )


def rank(number: int, node: int = 0, device: str = "Xeon", numa: float = 0.0) -> Rank:
    return Rank(number, number if node == 0 else 0, node, device, Reading(numa), "2.13.0", 1)


def bandwidth_record(
    measured: Sequence[SizeResult] | None = None,
    ranks: int = 2,
    nodes: int = 1,
    backend: str = "gloo",
    where: Machine | None = None,
    surroundings: Mapping[str, Fact] | None = None,
    trials: Sequence[EnvironmentTrial] = (),
) -> BandwidthRecord:
    return BandwidthRecord(
        header=Header(
            tool_version="0.1.0",
            label="test",
            created="2026-01-02 03:04",
            source="hardware",
            effort="quick",
            machine=where or replace(machine(gpus=0), environment={}),
        ),
        backend=backend,
        nodes=nodes,
        ranks=tuple(rank(each, each * nodes // ranks) for each in range(ranks)),
        surroundings=surroundings or {"nccl.conf": Fact(None, "there is none")},
        overhead_seconds=3e-7,
        sizes=sizes(ranks=ranks) if measured is None else tuple(measured),
        trials=tuple(trials),
        complete=True,
    )


def gpu_machine(
    kind: str = "PHB",
    peers: Fact | None = None,
    environment: Mapping[str, str] | None = None,
    wsl2: bool = False,
) -> Machine:
    """Two RTX 4090 on PCIe gen 4 x16."""
    link = Link(0, 1, Fact(kind), peers or Fact("OK"))
    made = replace(machine(gpus=2), links=(link,), environment=environment or {}, wsl2=wsl2)
    return replace(made, versions={**made.versions, "nccl": Fact("2.27.5")})


def gpu_record(
    rate: float = 21e9,
    kind: str = "PHB",
    peers: Fact | None = None,
    environment: Mapping[str, str] | None = None,
    wsl2: bool = False,
    trials: Sequence[EnvironmentTrial] = (),
) -> BandwidthRecord:
    return bandwidth_record(
        sizes(alpha=20e-6, rate=rate),
        backend="nccl",
        where=gpu_machine(kind, peers, environment, wsl2),
        trials=trials,
    )


def field_report() -> BandwidthRecord:
    """The case of the field report: two cards under WSL2, shared memory switched off."""
    measured = (
        size_result(1024, "sweep", alpha=1e-3),
        size_result(4096, "sweep", alpha=1e-3),
        *(
            replace(
                size_result(nbytes, f"{nbytes // 10**6} MB of the field report"),
                latency_seconds=((seconds,) * 6, (seconds,) * 6),
                window_seconds=((5 * seconds,) * 6, (5 * seconds,) * 6),
            )
            for nbytes, seconds in zip(FIELD_REPORT, (9e-3, 83e-3, 390e-3), strict=True)
        ),
    )
    environment = {"NCCL_IB_DISABLE": "1", "NCCL_SHM_DISABLE": "1"}
    where = gpu_machine("SYS", Fact("not supported"), environment, wsl2=True)
    return bandwidth_record(
        measured, backend="nccl", where=where, surroundings={"interface": Fact("eth0, ethernet")}
    )


def trial(
    name: str, rate: float | None = 21e9, status: Status = "done", reason: str = ""
) -> EnvironmentTrial:
    variables = dict(part.split("=", 1) for part in name.split() if "=" in part)
    measured = () if rate is None else (size_result(64 * 2**20, rate=rate, alpha=20e-6),)
    return EnvironmentTrial(name, variables, status, reason, measured)


def kinds(findings: Sequence[Finding]) -> dict[str, Finding]:
    """By kind, for records in which each kind occurs once."""
    return {finding.kind: finding for finding in findings}


def golden_record() -> BandwidthRecord:
    """Everything at once: two cards, a wrong sum, a late rank, trials, a rank that died."""
    measured = [
        *sizes(alpha=20e-6, rate=9e9, late=1),
        ended(1_000_000, "invalid", "CORRUPT: 3 elements are wrong after timing"),
        ended(2**30, "failed", "rank 1 ran out of memory"),
    ]
    trials = [
        trial("as it is", 9e9),
        trial("NCCL_P2P_DISABLE=1", 18e9),
        trial("NCCL_SHM_DISABLE=1", None, "hung", "no answer within 10 s"),
        trial("NCCL_IB_DISABLE=1", None, "skipped", "there is one machine"),
    ]
    record = bandwidth_record(
        measured,
        backend="nccl",
        where=gpu_machine("PHB", environment={"NCCL_DEBUG": "WARN"}),
        surroundings={"nccl.conf": Fact("NCCL_P2P_LEVEL=SYS"), "interface": Fact("eth0")},
        trials=trials,
    )
    culprit = Culprit(1, "was killed by SIGKILL", "all-reduce of 1073741824 bytes")
    return replace(record, culprit=culprit, complete=False)
