"""What is kept of a trace file? What each step took, who owns the time, and what could come back.

Seconds are seconds per step wherever nothing else is said. A bound is what the steps would take
less if some work vanished, by replaying all that waits for each other: more cannot come back.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

from diagnose.records.diagnosis import Diagnosis
from diagnose.records.header import Header
from diagnose.records.script import Cause, Growth, Site, Suspect

# What the host did, in the order in which it explains an idle device best.
Doing = Literal["collective", "sync", "copy", "allocation", "launching", "loader", "python"]
DOINGS: tuple[Doing, ...] = get_args(Doing)
UNRECORDED = "nothing recorded"


@dataclass(frozen=True)
class Step:
    """One step. Without a device only `seconds` and `host` say anything."""

    seconds: float
    busy: float = 0.0  # the device computes, copies, sets or exchanges
    idle: Mapping[str, float] | None = None  # by what the host did meanwhile
    exposed_copy: float = 0.0  # the device copies and does nothing else
    exposed_communication: float = 0.0
    kernels: int = 0


@dataclass(frozen=True)
class Device:
    """What the device did in the whole trace; seconds of the whole trace."""

    seconds: float  # from its first event to its last
    busy: float
    computing: float
    exposed_copy: float
    exposed_communication: float
    copies: float
    communication: float
    kernels: int
    kernel_seconds: float  # the sum of their durations
    tensor_core_seconds: float
    plain_product_seconds: float  # of matrix products that use no tensor cores
    queue_length: float  # work that waits when a kernel starts, on average
    graph_launches: int
    # Work whose launch lies before the trace.
    unlaunched: int
    launched_seconds: float  # from first to last, of the work that was launched in the trace
    launched_busy: float
    launched_computing: float


@dataclass(frozen=True)
class KernelGroup:
    """Kernels of one operator at one line, per step."""

    operator: str
    site: Site | None
    backward: bool
    kernels: float
    seconds: float


@dataclass(frozen=True)
class Bound:
    """What removing some work could give back at most."""

    cause: Cause
    site: Site | None  # to which most of that work belongs
    seconds: float
    what: str  # what was left out in the replay


@dataclass(frozen=True)
class Piece:
    """A part of the step that is drawn; seconds since its start."""

    lane: Literal["host", "device"]
    kind: str
    start: float
    end: float


@dataclass(frozen=True)
class RankTrace:
    """One file."""

    rank: int
    file: str  # its name, without the folder
    boundary: str
    steps: tuple[Step, ...]
    device: Device | None
    host: Mapping[str, float]  # what the host did
    phases: Mapping[str, float]
    suspects: tuple[Suspect, ...]
    bounds: tuple[Bound, ...]
    kernels: tuple[KernelGroup, ...]
    picture: tuple[Piece, ...]
    drawn_at: float = 0.0  # when the step of the picture begins, in the trace's own unit
    ticks: float = 1e6  # of that unit, in a second
    double_share: float = 0.0
    double_site: Site | None = None
    growth: Growth | None = None
    loader_workers: int | None = None
    memory_events: float = 0.0
    allocated_bytes: float = 0.0
    peak_bytes: int = 0
    collectives: int = 0  # in the whole trace
    own_seconds: float = 0.0  # without waiting for other ranks
    skew_seconds: float = 0.0  # by which it reaches a collective later than the first rank there
    clock_offset: float = 0.0  # to the first file, by their collectives
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class TraceRecord:
    """What one trace, or the traces of all ranks, show."""

    FILE_NAME: ClassVar[str] = "trace.json"

    header: Header
    script: str  # the file whose lines the trace names most, or that of the trace
    ranks: tuple[RankTrace, ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class TraceDiagnosis(Diagnosis):
    """The answer, as it is written to JSON: that of `script`, and what only a trace shows."""

    device_busy_share: float | None = None
    step_busy_share: float | None = None
