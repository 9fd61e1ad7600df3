"""What does an `optimize` leave behind? Both sides of every experiment, raw, and the launch map."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from diagnose.records.header import Header, Reading, Setting, Status, WorkloadFacts
from diagnose.records.run import Measurement, StageResult
from diagnose.records.sequential import Block

# Of "before" and "after": a fact of the sides that have a loader.
DATA_WAIT = "{}_data_wait_share"


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

    key: str  # of the optimization in the catalogue
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


def find_blocks(before: Measurement, control: Measurement, after: Measurement) -> list[Block]:
    """Seconds per step, or per sample where the sides do not process equally many."""
    sides = before, control, after
    counts = [each.samples_per_step or 0 for each in sides]
    if len(set(counts)) == 1 or not all(counts):
        counts = [1, 1, 1]
    times = [
        [seconds / (side.timing.steps_per_slot * count) for seconds in side.timing.slot_seconds]
        for side, count in zip(sides, counts, strict=True)
    ]
    blocks = [Block(*each) for each in zip(*times, strict=False)]
    if not blocks:
        raise ValueError("no block has every side")
    if any(min(each) <= 0 for each in blocks):
        raise ValueError("a slot took no time: the clock cannot resolve it")
    return blocks


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

    FILE_NAME: ClassVar[str] = "optimize.json"

    header: Header
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
