"""What is recorded? The data types that the measuring half writes and the telling half reads.

Standard library only. SI units, raw samples, nothing derived: a summary can always be
recomputed, so it is never stored where it could disagree with its samples.

Schema history
  1  first version
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

SCHEMA = 1
# Raised whenever a change of the measuring method moves a number (see CHANGELOG, "Method").
METHOD = 2

Setting = str | int | float | bool | None
Status = Literal["done", "skipped", "failed", "hung", "invalid"]
Source = Literal["hardware", "stub", "fake device"]


@dataclass(frozen=True)
class Reading:
    """A measured number, or the reason why there is none. Never 0, -1 or NaN for "unknown"."""

    value: float | None
    reason: str = ""

    def __post_init__(self) -> None:
        if self.value is None and not self.reason:
            raise ValueError("a reading without a value needs a reason")
        if self.value is not None and not math.isfinite(self.value):
            raise ValueError(f"a reading must be finite, not {self.value}")


@dataclass(frozen=True)
class Fact:
    """A piece of text about the machine, or the reason why it is unknown."""

    value: str | None
    reason: str = ""

    def __post_init__(self) -> None:
        if self.value is None and not self.reason:
            raise ValueError("a fact without a value needs a reason")


@dataclass(frozen=True)
class Timing:
    """What the clock saw of one variant. slot i of every variant of a stage ran in block i."""

    steps_per_slot: int
    slot_starts: tuple[float, ...]  # seconds on the system's monotonic clock
    slot_seconds: tuple[float, ...]  # wall time of a whole slot, device synchronised
    warmup_seconds: tuple[float, ...]  # every warm-up step, synchronised
    not_steady: str  # empty, or which steady-state condition was unmet when warm-up ended
    unmet: str  # empty, or which stopping condition was unmet when time ran out
    overhead_seconds: float  # one empty timer pair with its synchronisation
    step_seconds: tuple[float, ...] = ()  # single steps inside the slots, for percentiles
    step_clock: Literal["wall", "device events", "none"] = "none"
    step_clock_reason: str = ""  # why there are no single steps
    gc_collections: int = 0  # cyclic collections that ran inside slots (0: it is off there)


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

    def __post_init__(self) -> None:
        if self.status != "done" and not self.reason:
            raise ValueError(f"stage {self.key}: status {self.status} needs a reason")
        if self.status == "done" and not self.measurements:
            raise ValueError(f"stage {self.key}: done without a measurement")


@dataclass(frozen=True)
class Gpu:
    """One GPU as NVML and the driver describe it. The UUID is hashed with the run's salt."""

    name: str
    uuid_hash: str
    nvml_index: Reading
    memory_bytes: Reading
    memory_used_before_bytes: Reading  # by anybody, before this run touched the device
    utilization_before: Reading
    power_limit_watts: Reading
    power_limit_default_watts: Reading
    power_limit_min_watts: Reading
    power_limit_max_watts: Reading
    sm_hertz_max: Reading
    memory_hertz_max: Reading
    pcie_generation: Reading
    pcie_generation_max: Reading
    pcie_width: Reading
    pcie_width_max: Reading
    compute_capability: Fact
    ecc: Fact
    mig: Fact
    persistence: Fact
    compute_mode: Fact
    energy_period_seconds: Reading  # how often the energy counter moves, detected under load


@dataclass(frozen=True)
class Link:
    """How two GPUs reach each other."""

    first: int
    second: int
    kind: Fact  # NVLINK, PIX, PXB, PHB, NODE or SYS
    peer_to_peer: Fact


@dataclass(frozen=True)
class Machine:
    """Where it was measured. No host name, user, path, address or serial number."""

    device: str  # "cpu", "cuda", or an accelerator's own name
    device_name: str
    system: str
    cpu_model: Fact
    cpu_cores: int  # that this process may use
    cpu_governor: Fact
    memory_bytes: Reading
    shared_memory_bytes: Reading  # free in /dev/shm
    # share of the processors busy with other work just before the run
    cpu_busy_before: Reading
    wsl2: bool
    container: Fact
    versions: Mapping[str, Fact]  # python, torch, cuda, cudnn, nccl, driver, transformers, ...
    threads: int
    git_commit: Fact
    environment: Mapping[str, str]  # allow-listed variables only
    gpus: tuple[Gpu, ...] = ()
    gpus_reason: str = ""
    links: tuple[Link, ...] = ()
    nvml: Fact = Fact(None, "not asked")  # "available", or why not
    allocator: Fact = Fact(None, "not recorded")  # what becomes of freed memory on the CPU


@dataclass(frozen=True)
class DataFacts:
    """What the real data are."""

    description: str
    sha256: str
    sentences: int
    rows: int
    erroneous_rows: int
    length_quantiles: Mapping[str, float]  # of a sample, p10 p50 p90 max
    padding_share: float  # of all token slots
    unit: str = "sentences"  # what is counted as `sentences`
    length_unit: str = "characters"


@dataclass(frozen=True)
class WorkloadFacts:
    """What job was measured."""

    name: str
    size: str
    settings: Mapping[str, Setting]
    parameters: int
    data: DataFacts | None = None
    data_reason: str = ""
    source_sha256: str = ""  # of the user's workload file


@dataclass(frozen=True)
class RunRecord:
    """One `run`: the file that everything told is derived from."""

    schema: int
    method: int
    tool_version: str
    label: str
    created: str  # UTC, to the minute
    source: Source
    effort: str  # "quick", "full" or "smoke"
    seed: int
    machine: Machine
    workload: WorkloadFacts
    planned: tuple[str, ...]  # stage keys, in order
    stages: tuple[StageResult, ...] = ()
    complete: bool = False


@dataclass(frozen=True)
class EqualityCheck:
    """One quantity that both sides of an experiment computed from the same seed and batch."""

    name: str  # "outputs", "loss", "gradients", "batches", ...
    tolerance: float  # largest |a - b| / (1 + |a|) that still counts as equal
    worst: float | None  # the largest found; None where shapes or finiteness already differ
    differing_samples: int | None  # of `samples`; None where the quantity is not per sample
    samples: int
    equal: bool
    remark: str = ""


@dataclass(frozen=True)
class Equality:
    """The proof that both sides compute the same, made before anything is timed."""

    checks: tuple[EqualityCheck, ...]
    # "not claimed": the change is meant to change the numbers (precision, batch size).
    claim: Literal["equal", "not claimed"] = "equal"
    remark: str = ""


@dataclass(frozen=True)
class Comparison:
    """One experiment: interleaved blocks of {before, before again, after}, raw."""

    key: str  # of the optimisation in the catalogue
    title: str
    form: Literal["after", "as published"]
    scope: str  # what one step is: "forward", "training step", "batch", ...
    before_text: str
    after_text: str
    status: Status
    reason: str = ""
    equality: Equality | None = None
    before: Measurement | None = None
    control: Measurement | None = None  # the same code as before, for the built-in A/A test
    after: Measurement | None = None
    facts: Mapping[str, Setting] = field(default_factory=dict)  # compile_seconds, bytes, ...
    notes: tuple[str, ...] = ()
    # Losses at equal numbers of samples, by side, where the numerics may change.
    curves: Mapping[str, tuple[float, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class LaunchLine:
    """What one source line of the user's code asks of the device in one step."""

    file: str  # relative to the project or to the workload's folder
    line: int
    function: str
    code: str
    forward: int  # operator launches
    backward: int  # launches of the backward pass that this line's forward made
    trips: int  # how often the line ran in one step
    syncs: int
    sync_operators: tuple[str, ...]
    allocated_bytes: int
    largest_bytes: int  # the largest single tensor
    flops: int
    seconds: Reading  # measured self time, forward and backward, under instrumentation
    operators: Mapping[str, int] = field(default_factory=dict)  # the most frequent


@dataclass(frozen=True)
class LaunchMap:
    """Every operator of one training step, by the source line that caused it."""

    form: str  # "original" or "optimised"
    settings: Mapping[str, Setting]
    lines: tuple[LaunchLine, ...]  # most launches first
    launches: int
    unattributed: int
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class OptimizeRecord:
    """One `optimize`: experiments and the map that says where to look."""

    schema: int
    method: int
    tool_version: str
    label: str
    created: str
    source: Source
    effort: str
    seed: int
    machine: Machine
    workload: WorkloadFacts
    planned: tuple[str, ...]
    comparisons: tuple[Comparison, ...] = ()
    maps: tuple[LaunchMap, ...] = ()
    # The plain encoder and the fully optimised step, interleaved: is anything left to gain?
    pace: StageResult | None = None
    # The ladder: each comparison adds one change to those before it; all start from the base.
    rungs: tuple[Comparison, ...] = ()
    complete: bool = False
    # Of the user's whole data set, for which the time is to be told.
    samples: int | None = None


@dataclass(frozen=True)
class Finding:
    """A conclusion. Derived from a record, never stored, so a changed rule re-judges old runs."""

    kind: str  # stable key
    verdict: Literal["cause", "excluded", "cannot tell", "flag"]
    severity: Literal["info", "warning", "critical"]
    sentence: str
    evidence: str
    advice: str = ""
