"""What does a `run` leave behind? Stages, and the raw times of everything they timed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from diagnose.records.header import Header, Reading, Setting, Status, WorkloadFacts


@dataclass(frozen=True)
class Timing:
    """What the clock saw of one variant. slot i of every variant of a stage ran in block i."""

    steps_per_slot: int
    slot_starts: tuple[float, ...]  # seconds on the system's monotonic clock
    slot_seconds: tuple[float, ...]  # wall time of a whole slot, device synchronized
    warmup_seconds: tuple[float, ...]  # every warm-up step, synchronized
    not_steady: str  # empty, or which steady-state condition was unmet when warm-up ended
    unmet: str  # empty, or which stopping condition was unmet when time ran out
    overhead_seconds: float  # one empty timer pair with its synchronization
    step_seconds: tuple[float, ...] = ()  # single steps inside the slots, for percentiles
    step_clock: Literal["wall", "device events", "none"] = "none"
    step_clock_reason: str = ""  # why there are no single steps


@dataclass(frozen=True)
class GpuUse:
    """What NVML saw of one GPU during the slots of one measurement."""

    gpu: int  # index into Machine.gpus
    joules: Reading  # over all slots of the measurement
    joules_source: str  # "energy counter", "power samples" or ""
    watts: Reading
    idle_watts: Reading  # before the run
    power_limit_watts: Reading
    utilization: Reading  # NVML's share of time with any kernel running, 0..1
    memory_bytes: Reading  # highest device memory in use, of all processes
    sm_hertz: Reading  # median
    sm_hertz_lowest: Reading
    memory_hertz: Reading
    celsius_first: Reading
    celsius_last: Reading
    pcie_generation: Reading  # read under load: idle links drop to a lower generation
    pcie_width: Reading
    throttle_seconds: Mapping[str, Reading] = field(default_factory=dict)  # by clock-limit reason
    dropped_samples: int = 0  # readings of 0 W or less


@dataclass(frozen=True)
class PowerTrace:
    """Power of one GPU over a stage, for the figure."""

    gpu: int
    at_seconds: tuple[float, ...]  # since the run began
    watts: tuple[float, ...]


@dataclass(frozen=True)
class Measurement:
    """One variant of a stage: what was run, what the clock saw, what the device used."""

    name: str
    # "reference" is an earlier stage's step measured again in the same blocks, so that the
    # difference of the two is a paired, interleaved one.
    role: Literal["result", "reference"]
    settings: Mapping[str, Setting]  # batch, sequence_length, dtype, workers, ...
    timing: Timing
    samples_per_step: int | None
    flops_per_step: Reading
    bytes_per_step: Reading
    peak_bytes: Reading
    gpus: tuple[GpuUse, ...] = ()
    gpus_reason: str = ""  # why gpus is empty


@dataclass(frozen=True)
class StageResult:
    """How one stage ended and what it measured."""

    key: str
    title: str
    status: Status
    reason: str = ""  # one sentence, for every status but "done"
    measurements: tuple[Measurement, ...] = ()
    notes: tuple[str, ...] = ()
    seconds: float = 0.0
    power: tuple[PowerTrace, ...] = ()
    # Kept busy on average by the job with its loader processes; None: not recorded.
    cpu_cores: Reading | None = None

    def __post_init__(self) -> None:
        if self.status != "done" and not self.reason:
            raise ValueError(f"stage {self.key}: status {self.status} needs a reason")
        if self.status == "done" and not self.measurements:
            raise ValueError(f"stage {self.key}: done without a measurement")


@dataclass(frozen=True)
class RunRecord:
    """One `run`: the file that everything told is derived from."""

    FILE_NAME: ClassVar[str] = "run.json"

    header: Header
    workload: WorkloadFacts
    planned: tuple[str, ...]  # stage keys, in order
    stages: tuple[StageResult, ...] = ()
    complete: bool = False
