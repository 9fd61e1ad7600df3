"""What does a comparison of two sides leave behind? Raw values and windows, and the proof of them.

Measuring fills `ProveRecord`; analysis turns it into a `Proof`, which is written to --json and
never stored. The sides are called before and after, whatever they are.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal

from diagnose.records.codec import dumps, from_dict
from diagnose.records.header import Header, Reading
from diagnose.records.script import Suspect, hide_value
from diagnose.records.sequential import Block, SpeedVerdict, ratio_interval
from diagnose.records.stats import Interval

# Of the proof in --json; the record has the schema of its header.
SCHEMA = 1
DEFAULT_SECONDS = 60.0
DEFAULT_EQUAL_STEPS = 20
DEFAULT_TIMEOUT = 300.0
# A step that has only some rows less than before has lost them; it is no other batch size.
SMALLEST_CHANGE_OF_BATCH = 1.25

BEFORE, AFTER = "before", "after"
# What a process decides once and keeps differs between two starts of the same script: what one pair
# of processes shows counts only if a second one shows it too.
STARTS = 2
# Two more runs of the side before, which set the scale of what may differ.
AGAIN, NUDGED = "before, once more", "before, with nudged weights"

LOSS, GRADIENT, PARAMETERS, OUTPUT = "loss", "gradient norm", "parameters", "output"

CHANGES = {
    "fused": "the fused form of the optimizer",
    "workers": "worker processes in the DataLoader",
    "pinned": "pinned memory in the DataLoader (on an accelerator)",
    "autocast": "the model's calls under autocast to bfloat16",
    "compile": "torch.compile of the model",
    "channels_last": "convolutions in the memory format channels_last",
    "tf32": "float32 matrix products in TF32 (on CUDA)",
    "batch": "twice the batch size in the DataLoader",
}

EqualityVerdict = Literal["EQUAL", "EQUAL WITHIN ROUNDING", "DIVERGES", "CANNOT TELL"]


@dataclass(frozen=True)
class Options:
    """What the user asked for."""

    seconds: float = DEFAULT_SECONDS
    equal_steps: int = DEFAULT_EQUAL_STEPS
    timeout: float = DEFAULT_TIMEOUT
    fail_if_slower: float | None = None  # a share: 0.02 is 2 %


@dataclass(frozen=True)
class EqualRun:
    """The first steps of one run, from the same seeds as the others."""

    name: str
    # By what was read, one per step; None is a value that is not finite, or was not there.
    values: Mapping[str, tuple[float | None, ...]]
    samples: float = 0.0  # in one step; 0: unknown
    steady: bool = False  # whether nearly every step has that many
    shapes: str = ""  # a digest of those of the parameters
    epsilon: float = 0.0  # of the coarsest type that its model computes in
    precision: str = ""  # the name of that type
    changed: str = "yes"  # what --with changed in it; "" if there was nothing to change
    failed: str = ""

    @property
    def steps(self) -> int:
        return max(map(len, self.values.values()), default=0)

    def begins_as(self, other: EqualRun) -> bool:
        """Whether the first step computes the same: then both take the same data."""
        tolerance = min(1e-3, 100 * max(self.epsilon, other.epsilon))
        for name in (LOSS, OUTPUT):
            mine, theirs = ((run.values.get(name) or (None,))[0] for run in (self, other))
            if mine is not None and theirs is not None:
                return math.isclose(mine, theirs, rel_tol=tolerance)
        return False

    def is_same(self, other: EqualRun) -> bool:
        """To the last bit: then it does not matter what rounding and chance can do."""
        return (
            self.steps > 0
            and (self.values, self.samples, self.shapes, self.precision)
            == (other.values, other.samples, other.shapes, other.precision)
            and all(None not in each for each in self.values.values())
        )


@dataclass(frozen=True)
class Window:
    """Consecutive steps of one side, with the drain of the device."""

    block: int
    side: str
    steps: int
    seconds: float
    start: int = 0  # which pair of processes


_NOT_MEASURED = Reading(None, "not measured")


@dataclass(frozen=True)
class SideFacts:
    """What is known of one side beside its windows."""

    title: str  # a commit, a file or a change, as the user named it
    script: str
    suspects: tuple[Suspect, ...] = ()
    phases: Mapping[str, float] = field(default_factory=dict)
    lines_reason: str = ""  # why there are none
    memory_bytes: Reading = _NOT_MEASURED
    joules_per_step: Reading = _NOT_MEASURED
    commit: str = ""  # of two commits
    tree: str = ""  # its files, as git names them


@dataclass(frozen=True)
class Edit:
    """Lines that differ between the sides; an end before its beginning is no line at all."""

    before_file: str
    before_first: int
    before_last: int
    after_file: str
    after_first: int
    after_last: int


@dataclass(frozen=True)
class ProveRecord:
    """Everything that was measured of two sides."""

    FILE_NAME: ClassVar[str] = "prove.json"

    header: Header
    options: Options
    before: SideFacts
    after: SideFacts
    runs: tuple[EqualRun, ...] = ()
    windows: tuple[Window, ...] = ()
    edits: tuple[Edit, ...] = ()
    arguments: tuple[str, ...] = ()  # of the script, on both sides
    boundary: str = ""  # what a step ends with
    missing: str = ""  # why there is less than everything
    notes: tuple[str, ...] = ()


def find_batch_ratio(runs: Sequence[EqualRun]) -> float:
    """Samples of a step before by those of a step after; 1 where both take the same data.

    They are counted at the calls of the model, and a repair may call it once instead of twice.
    """
    sides = {each.name: each for each in runs}
    before, after = sides.get(BEFORE), sides.get(AFTER)
    if before is None or after is None or not before.samples or not after.samples:
        return 1.0
    times = max(before.samples, after.samples) / min(before.samples, after.samples)
    is_multiple = times >= 2 and abs(times - round(times)) < 0.01
    is_larger = times >= SMALLEST_CHANGE_OF_BATCH and before.steady and after.steady
    if not (is_multiple or is_larger) or before.begins_as(after):
        return 1.0
    return before.samples / after.samples


def blocks_of(windows: Sequence[Window], ratio: float) -> list[Block]:
    """Seconds per step of every block; a step after counts for as many samples as before.

    Where the side after has the two windows, steps per second stand for seconds per step: the odd
    one is then again to the pair as after is to before.
    """
    found: dict[int, dict[str, list[float]]] = {}
    for each in windows:
        scale = ratio if each.side == AFTER else 1.0
        side = found.setdefault(each.block, {BEFORE: [], AFTER: []})[each.side]
        side.append(scale * each.seconds / each.steps)
    return [
        Block(*sides[BEFORE], *sides[AFTER])
        if len(sides[BEFORE]) == 2
        else Block(*(1 / each for each in (*sides[AFTER], *sides[BEFORE])))
        for sides in found.values()
    ]


def starts_of(windows: Sequence[Window]) -> list[list[Window]]:
    """The windows of each pair of processes."""
    found: dict[int, list[Window]] = {}
    for each in windows:
        found.setdefault(each.start, []).append(each)
    return list(found.values())


def speed_interval(windows: Sequence[Window], ratio: float) -> Interval:
    """Of the time before by the time after: from the lowest to the highest end of all starts."""
    center = ratio_interval(blocks_of(windows, ratio)).center
    found = [ratio_interval(blocks_of(each, ratio)).ends for each in starts_of(windows)]
    ends = [each for each in found if each is not None]
    if len(ends) < len(found):
        return Interval(center, None, None)
    low, high = min(low for low, _ in ends), max(high for _, high in ends)
    return Interval(min(max(center, low), high), low, high)


@dataclass(frozen=True)
class Speed:
    """`ratio` is the time before by the time after: above 1 is faster."""

    verdict: SpeedVerdict
    ratio: float | None
    ratio_ci: tuple[float, float] | None
    confidence: float
    per: str  # "step", or "sample" where a step of the sides has different numbers of them
    before_ms: float | None
    after_ms: float | None
    blocks: int
    control: float | None  # the same ratio of one side to itself
    reason: str = ""
    # By what the model is called with, where that is known.
    samples_per_second: tuple[float, float] | None = None


@dataclass(frozen=True)
class Equality:
    """`step` is the first that differs, counted from 1."""

    verdict: EqualityVerdict
    step: int | None
    what: str
    before: float | None
    after: float | None
    allowed: float | None  # by how much they might differ there
    steps: int  # compared
    reason: str = ""

    @property
    def text(self) -> str:
        return f"DIVERGES AT STEP {self.step}" if self.step is not None else self.verdict


@dataclass(frozen=True)
class LineChange:
    """Lines that belong together, and their time per step (per sample where steps differ)."""

    file: str
    line: int
    side: str  # that the line number is of
    function: str
    code: str
    phase: str
    before_ms: float
    after_ms: float
    edited: bool  # whether these lines differ between the sides
    edit: tuple[int, int] | None = None  # the first and the last line of that edit, on this side

    @property
    def saved_ms(self) -> float:
        return self.before_ms - self.after_ms


@dataclass(frozen=True)
class Proof:
    """The answer, as it is written to JSON."""

    schema: int
    sentence: str
    before: str
    after: str
    speed: Speed
    equality: Equality
    lines: tuple[LineChange, ...]
    phases: Mapping[str, tuple[float, float]]
    memory_bytes: tuple[Reading, Reading]
    joules_per_step: tuple[Reading, Reading]
    commits: tuple[str, str]  # "" where a side is a file
    notes: tuple[str, ...] = ()


def without_paths(record: ProveRecord) -> ProveRecord:
    """As it may be published: of a file outside the user's folder its name, of an argument too."""
    text = dumps(replace(record, arguments=tuple(map(hide_value, record.arguments)))).decode()
    for file in set(re.findall(r'"(?:\w*file|script|title)": "((?:/|\.\./)[^"]*)"', text)):
        text = text.replace(file, f"…/{file.rpartition('/')[2]}")
    return from_dict(ProveRecord, json.loads(text))
