"""Where, with what and on which job was it measured? The head that every record has.

SI units, raw samples, nothing derived: a summary can always be recomputed, so it is never stored
where it could disagree with its samples.

Schema history
  2  the head is one object; the record of a script is stored too
  1  first version
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from diagnose import __version__

SCHEMA = 2
# Raised whenever a change of the measuring method moves a number (see CHANGELOG, "Method").
METHOD = 4
# Instead of a value that must not be published.
HIDDEN = "(hidden)"

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
    cpu_cores: int | None  # that this process may use; None where nobody asked, as in a trace
    cpu_governor: Fact
    memory_bytes: Reading
    shared_memory_bytes: Reading  # free in /dev/shm
    # share of the processors busy with other work just before the run
    cpu_busy_before: Reading
    wsl2: bool
    container: Fact
    versions: Mapping[str, Fact]  # python, torch, cuda, cudnn, nccl, driver, transformers, ...
    threads: int | None
    git_commit: Fact
    environment: Mapping[str, str]  # allow-listed variables only
    gpus: tuple[Gpu, ...] = ()
    gpus_reason: str = ""
    links: tuple[Link, ...] = ()
    nvml: Fact = Fact(None, "not asked")  # "available", or why not
    allocator: Fact = Fact(None, "not recorded")  # what becomes of freed memory on the CPU
    memory_used_bytes: Reading | None = None  # of the host, by everybody, before the run
    # git's hashes of the folders that measure: unlike the commit they survive a squash merge
    code_trees: Mapping[str, str] = field(default_factory=dict)


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
class Header:
    """What every record begins with."""

    label: str
    created: str  # UTC, to the minute
    source: Source
    effort: str  # "quick", "full" or "smoke"
    machine: Machine  # of rank 0, where there are several
    seed: int = 0
    schema: int = SCHEMA
    method: int = METHOD
    tool_version: str = __version__

    @property
    def versions(self) -> str:
        return f"{self.method}, {self.schema}, {self.tool_version}"
