"""What is recorded when several ranks work together? Raw times by rank, nothing derived.

A series is written [rank][sample]: which rank was late is decided when the record is read, not
when it is made.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from diagnose.records.experiments import Comparison
from diagnose.records.header import Fact, Header, Reading, Setting, Status, WorkloadFacts

ByRank = tuple[tuple[float, ...], ...]  # [rank][sample]


@dataclass(frozen=True)
class Rank:
    """One process of the job, and where it ran. Hosts are numbered, never named."""

    rank: int
    local_rank: int
    node: int
    device_name: str
    numa_node: Reading
    torch_version: str
    threads: int


@dataclass(frozen=True)
class Culprit:
    """The rank that ended a measurement, and what is known of its end."""

    rank: int
    reason: str  # "was killed by SIGKILL", "stopped answering", "raised ..."
    where: str  # "all-reduce of 4194304 bytes", "step 'together'"


@dataclass(frozen=True)
class SizeResult:
    """All-reduces of one size."""

    nbytes: int
    purpose: str  # "sweep", "4 MB of the field report", "bucket of 25 MiB", "all gradients"
    status: Status  # "invalid" is a wrong sum: its times are no bandwidth
    reason: str = ""
    latency_seconds: ByRank = ()  # barrier, one all-reduce, synchronize
    window_seconds: ByRank = ()  # a window of back-to-back all-reduces, then synchronize
    iterations_per_window: int = 0
    wrong_before: int | None = None  # elements, summed over ranks; None: not checked
    wrong_after: int | None = None


@dataclass(frozen=True)
class EnvironmentTrial:
    """The same short sweep in fresh processes with one variable changed."""

    name: str  # "as it is", "NCCL_P2P_DISABLE=1", ...
    variables: Mapping[str, str]
    status: Status
    reason: str = ""
    sizes: tuple[SizeResult, ...] = ()


@dataclass(frozen=True)
class BandwidthRecord:
    """One run of ddp_bandwidth.py."""

    FILE_NAME: ClassVar[str] = "bandwidth.json"

    header: Header
    backend: str
    nodes: int
    ranks: tuple[Rank, ...]
    # What is read before anything is measured: "nccl.conf", "/dev/shm", "numa", "interface", ...
    surroundings: Mapping[str, Fact]
    overhead_seconds: float  # of one empty pass through the timing loop
    sizes: tuple[SizeResult, ...] = ()
    trials: tuple[EnvironmentTrial, ...] = ()
    culprit: Culprit | None = None
    complete: bool = False


@dataclass(frozen=True)
class Series:
    """One way to take a step, timed in the same interleaved blocks as the others."""

    name: str  # one of SERIES_NAMES
    steps_per_slot: int
    slot_seconds: ByRank  # [rank][block]; () for a rank that only waited


# alone: rank 0 works, the others wait. together: all ranks at once. The names say what differs:
# "input" real batches through the loader, "resident" one batch kept on the device; "local" no
# gradient is exchanged (correct no_sync), "synchronised" DDP as usual; "full" with the optimizer.
SERIES_NAMES = (
    "alone full input",
    "alone local input",
    "alone local resident",
    "together local resident",
    "together local input",
    "together synchronised input",
    "together full input",
)


@dataclass(frozen=True)
class CadenceCost:
    """What evaluation and saving cost, so that their share is known for any cadence."""

    evaluation_seconds: Reading
    saving_seconds: Reading
    evaluated_samples: int


@dataclass(frozen=True)
class ScalingRecord:
    """One run of ddp_scaling.py."""

    FILE_NAME: ClassVar[str] = "scaling.json"

    header: Header
    workload: WorkloadFacts
    backend: str
    nodes: int
    ranks: tuple[Rank, ...]
    samples_per_step: int  # of one rank
    gradient_bytes: int
    bucket_bytes: tuple[int, ...]  # as DDP really made them, first all-reduced first
    backward_seconds: tuple[float, ...] = ()  # local, resident, alone: what can hide a transfer
    series: tuple[Series, ...] = ()
    watts: tuple[Reading, ...] = ()  # by rank, over the full step together
    curve: tuple[SizeResult, ...] = ()  # all-reduces of the bucket sizes, same processes
    comparisons: tuple[Comparison, ...] = ()  # slot_seconds are those of the slowest rank
    cadence: CadenceCost | None = None
    settings: Mapping[str, Setting] = field(default_factory=dict)
    culprit: Culprit | None = None
    complete: bool = False
