"""What is recorded when a batch size is sought? Every probe raw, and what the best ones cost.

The line of memory over batch lives here because both halves need it: the search to guess, the
report to show.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from diagnose.records.header import Header, Reading, Setting, Status, WorkloadFacts
from diagnose.records.run import StageResult

# A published guide: max_crops up to which the base batch is taken times this factor.
BY_MAX_CROPS: Sequence[tuple[float, float]] = (
    (4, 1.0),
    (8, 0.75),
    (12, 0.5),
    (float("inf"), 0.4),
)

# The keys of a job that has no max_crops: by itself, and in a replica of DDP with its buckets.
AS_IT_IS, UNDER_DDP = "as it is", "under DDP"

ProbeStatus = Literal[
    "fits",
    "out of memory",
    "over the limit",  # it ran, but took more of the free memory than is safe
    "spills",  # it ran, but so slowly that memory must have been moved out of the device
    "failed",
    "hung",
]
# Whatever fails or hangs may do so for another reason.
REFUSED_BY_MEMORY: tuple[ProbeStatus, ...] = ("out of memory", "over the limit", "spills")


@dataclass(frozen=True)
class Probe:
    """One batch size, tried with real steps in a child, which later probes may share."""

    batch: int
    status: ProbeStatus
    peak_bytes: Reading
    available_bytes: Reading  # free before anything of the job was there
    step_seconds: tuple[float, ...] = ()  # after the step that makes the optimizer's state
    reason: str = ""  # one sentence, for every status but "fits"
    seconds: float = 0.0  # of the whole probe, as its supervisor waited for it
    fresh: bool = False  # the process had tried nothing before

    def __post_init__(self) -> None:
        if self.batch < 1:
            raise ValueError(f"a probe needs a batch of at least 1, not {self.batch}")
        if self.status != "fits" and not self.reason:
            raise ValueError(f"batch {self.batch}: status {self.status} needs a reason")

    @property
    def fits(self) -> bool:
        return self.status == "fits"


@dataclass(frozen=True)
class Estimate:
    """A range of batch sizes that a rule of thumb recommends."""

    source: str  # "8 to 12 GB of memory", "below 1 billion parameters", ...
    low: int
    high: int


@dataclass(frozen=True)
class Configuration:
    """One setting of the job, and the search for its batch size."""

    key: str  # "as it is", or "max_crops 12"
    settings: Mapping[str, Setting]
    status: Status
    reason: str = ""
    estimates: tuple[Estimate, ...] = ()
    probes: tuple[Probe, ...] = ()  # in the order in which they were made
    stopped: str = ""  # why the search ended before its answer was exact
    asked: tuple[int, ...] = ()  # the batch sizes that the user wants timed; none: ours
    sweep: StageResult | None = None  # one measurement per batch, in interleaved blocks
    loader: StageResult | None = None  # how fast samples arrive
    # The one to use, else the largest that fits; None: none fits, or not recorded.
    batch_size_used: int | None = None
    seconds: float = 0.0


@dataclass(frozen=True)
class BatchSizeRecord:
    """One `batch-size`."""

    FILE_NAME: ClassVar[str] = "batch_size.json"

    header: Header
    workload: WorkloadFacts
    task: str  # what one step is: "training step" or "inference"
    planned: tuple[str, ...]  # keys of the configurations
    ranks: int = 1
    configurations: tuple[Configuration, ...] = ()
    complete: bool = False


@dataclass(frozen=True)
class MemoryLine:
    """peak = fixed + per_sample * batch."""

    fixed_bytes: float
    bytes_per_sample: float

    def predict_bytes(self, batch: float) -> float:
        return self.fixed_bytes + self.bytes_per_sample * batch

    def largest_within(self, nbytes: float) -> int:
        return max(0, int((nbytes - self.fixed_bytes) / self.bytes_per_sample))


def crops_factor(max_crops: int) -> float:
    return next(factor for most, factor in BY_MAX_CROPS if max_crops <= most)


def fit_memory(probes: Sequence[Probe]) -> MemoryLine | None:
    """Least squares over all probes that ran to their end; None if memory does not grow."""
    peaks = {p.batch: p.peak_bytes.value for p in probes if p.step_seconds}
    points = [(batch, peak) for batch, peak in peaks.items() if peak is not None]
    if len(points) < 2:
        return None
    mean_batch = sum(batch for batch, _ in points) / len(points)
    mean_peak = sum(peak for _, peak in points) / len(points)
    spread = sum((batch - mean_batch) ** 2 for batch, _ in points)
    slope = sum((batch - mean_batch) * (peak - mean_peak) for batch, peak in points) / spread
    if slope <= 0:
        return None
    return MemoryLine(mean_peak - slope * mean_batch, slope)


def largest_fitting(probes: Sequence[Probe]) -> int:
    """0 if none fits. A process that has tried nothing before has the last word."""
    refuted = min((p.batch for p in probes if p.fresh and not p.fits), default=None)
    return max(
        (p.batch for p in probes if p.fits and (refuted is None or p.batch < refuted)), default=0
    )


def smallest_failing(probes: Sequence[Probe]) -> int | None:
    """None if everything fits that was tried; here, too, a fresh process has the last word."""
    proven = max((p.batch for p in probes if p.fresh and p.fits), default=0)
    return min(
        (p.batch for p in probes if not p.fits and (p.fresh or p.batch > proven)), default=None
    )
