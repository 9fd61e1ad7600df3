"""What is kept of a trace file? What each step took, who owns the time, and what could come back.

Seconds are seconds per step wherever nothing else is said. A bound is what the steps would take
less if some work vanished, by replaying all that waits for each other: more cannot come back.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal, get_args

from diagnose.records.diagnosis import Diagnosis
from diagnose.records.header import Header
from diagnose.records.script import Bound as Bound
from diagnose.records.script import Growth, Site, Suspect

# What the host did, in the order in which it explains an idle device best.
Doing = Literal["collective", "sync", "copy", "allocation", "launching", "loader", "python"]
DOINGS: tuple[Doing, ...] = get_args(Doing)
UNRECORDED = "nothing recorded"


@dataclass(frozen=True)
class Step:
    """One step. Without a device only its times say anything."""

    seconds: float
    start: float = 0.0  # seconds after the trace's first event
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
    kernels: float  # of both passes
    seconds: float
    backward_seconds: float  # of the backward pass that this operator caused


@dataclass(frozen=True)
class MemoryUse:
    """What the allocator was asked for, per step."""

    on_device: bool  # or of the host
    events: float
    allocated_bytes: float
    peak_bytes: int
    growth_bytes: float  # by which more stays allocated after each step; 0 if not certain


@dataclass(frozen=True)
class Inside:
    """A library's function that a line waits for."""

    function: str
    seconds: float


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
    steps: tuple[Step, ...]  # of a long trace those in the middle
    device: Device | None
    host: Mapping[str, float]  # what the host did
    phases: Mapping[str, float]
    suspects: tuple[Suspect, ...]
    bounds: tuple[Bound, ...]
    kernels: tuple[KernelGroup, ...]
    picture: tuple[Piece, ...]
    steps_found: int = 0  # in the whole trace
    drawn: int = 0  # the step of the picture
    zero: float = 0.0  # when the first event was, in the trace's own unit
    ticks: float = 1e6  # of that unit, in a second
    # The library's function in which most of a suspect's Python time passes, by its key.
    inside: Mapping[str, Inside] = field(default_factory=dict)
    double_share: float = 0.0
    double_site: Site | None = None
    update_operators: tuple[str, ...] = ()  # that the optimizer's step calls
    growth: Growth | None = None
    loader_workers: int | None = None
    memory: MemoryUse | None = None
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
