"""What does a run of somebody's own script leave behind? Raw facts, and the findings made of them.

Measuring fills `ScriptRecord`; analysis turns it into a `Diagnosis`, which is written to --json
and never stored. Seconds are seconds per step wherever nothing else is said.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

from diagnose.records.codec import dumps, from_dict
from diagnose.records.header import Header

# Of the findings in --json; the record has the schema of its header.
SCHEMA = 1

Cause = Literal[
    "input",
    "transfer",
    "host",
    "launch",
    "sync",
    "allocation",
    "precision",
    "optimizer",
    "evaluation",
    "batch",
    "recompute",
    "growth",
    "communication",
    "straggler",
    "compute",
]
CAUSES: tuple[Cause, ...] = get_args(Cause)

Phase = Literal[
    "input",
    "forward",
    "backward",
    "optimizer",
    "evaluation",
    "checkpoint",
    "logging",
    "communication",
    "host",
]
PHASES: tuple[Phase, ...] = get_args(Phase)


DEFAULT_SECONDS = 60.0
DEFAULT_WARMUP = 5


@dataclass(frozen=True)
class Options:
    """What the user asked for."""

    steps: int | None = None
    seconds: float = DEFAULT_SECONDS
    warmup: int = DEFAULT_WARMUP
    interventions: bool = True
    keep_running: bool = False


# The two unchanged windows of every block.
PLAIN, AGAIN = "plain", "plain again"


@dataclass(frozen=True)
class Site:
    """A line of the user's code."""

    file: str
    line: int
    function: str
    code: str = ""


@dataclass(frozen=True)
class Suspect:
    """Work of one step that belongs together: one loop, one function or one line.

    `seconds` was sampled outside the backward pass; `backward_seconds` is the share of the
    backward pass that the operators of these lines caused. The rest was counted in mapped steps.
    """

    key: str
    site: Site  # its hottest line
    phase: Phase
    seconds: float
    backward_seconds: float = 0.0
    operator_seconds: float = 0.0  # inside operators of the forward pass
    torch_seconds: float = 0.0  # in Python code of torch's own
    launches: int = 0
    trips: int = 0  # how often its busiest line runs
    syncs: int = 0
    flops: int = 0
    moved_bytes: int = 0
    new_bytes: int = 0  # of large tensors, whose memory may come fresh from the system
    copy_seconds: float = 0.0  # operators that only change type, layout or device of a batch
    repeats: bool = False  # the same results in two steps whose batches differ
    feeds: bool = False  # makes what the model is given


def replayed_name(key: str) -> str:
    """The variant in which a suspect's function gave back kept results."""
    return f"replayed {key}"


def doubled_name(key: str) -> str:
    """The variant in which a suspect's line ran twice."""
    return f"doubled {key}"


@dataclass(frozen=True)
class Window:
    """Consecutive steps of one variant."""

    block: int
    variant: str
    steps: int
    seconds: float  # of all its steps


@dataclass(frozen=True)
class Change:
    """What one variant changed in the running script, and whom it speaks for."""

    variant: str
    cause: Cause
    against: str  # the variant that it is compared with
    what: str
    site: Site | None
    samples: float = 1.0  # batches in one step of it: a doubled batch has two
    # The share of its suspect's work that was done twice: what that adds, removing it gives back.
    doubles: float = 0.0
    failed: str = ""


@dataclass(frozen=True)
class Occasion:
    """Something that comes every so many steps, left out in some of them."""

    phase: Phase
    function: str
    what: str  # what leaving it out means
    steps: int  # in which it could have come
    ran: tuple[float, ...]  # seconds of the steps with it
    left_out: tuple[float, ...]  # seconds of the steps that would have had it

    @property
    def times(self) -> int:
        return len(self.ran) + len(self.left_out)


@dataclass(frozen=True)
class Loader:
    """One DataLoader that the steps used."""

    site: Site | None
    workers: int
    batch_size: int | None


@dataclass(frozen=True)
class Growth:
    """What became more from step to step."""

    site: Site | None
    what: str
    holds_tensors: bool
    # By which each step is slower than the one before, with its interval; 0 if not certain.
    seconds_per_step: float
    seconds_low: float
    seconds_high: float
    bytes_per_step: float
    suspect: str = ""  # the key of the work that takes longer and longer


@dataclass(frozen=True)
class RankTimes:
    """One rank of a distributed run."""

    rank: int
    step_seconds: float
    waiting_seconds: float  # sampled in calls that exchange something
    suspects: tuple[Suspect, ...]
    windows: tuple[Window, ...]


@dataclass(frozen=True)
class Ceilings:
    """What this device can do at best, measured beside the script."""

    flops_per_second: float  # float32 matrix product
    double_flops_per_second: float
    low_flops_per_second: float
    bytes_per_second: float  # copied in memory
    fresh_bytes_per_second: float = 0.0  # given by the system on first touch; 0: at once


@dataclass(frozen=True)
class ScriptRecord:
    """Everything that was measured while the script ran."""

    FILE_NAME: ClassVar[str] = "script.json"

    header: Header
    script: str
    boundary: str  # what a step ends with
    steps: int  # all that were seen
    step_seconds: tuple[float, ...]  # plain ones, with only the boundary hook
    hook_seconds: float  # what the hook itself takes, per step
    phases: Mapping[str, float]
    sampled_steps: int
    suspects: tuple[Suspect, ...]
    windows: tuple[Window, ...]
    changes: tuple[Change, ...]
    occasions: tuple[Occasion, ...]
    loaders: tuple[Loader, ...]
    double_share: float  # of the operators' time, in float64
    double_site: Site | None
    flops: int  # of one step
    growth: Growth | None
    ranks: tuple[RankTimes, ...]
    ceilings: Ceilings | None
    update_bytes: int = 0  # of parameters, gradients and states: what one update has to move
    missing: str = ""  # why this record is not complete
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class ScriptFinding:
    """One cause, with what removing it gives back. In milliseconds, as a reader sees it."""

    cause: Cause
    file: str
    line: int
    function: str
    gain_ms: float
    gain_ci: tuple[float, float]
    share: float
    verified: bool
    evidence: str
    advice: str


@dataclass(frozen=True)
class Exclusion:
    """A cause that was looked for and cannot give back much."""

    cause: Cause
    gain_ci: tuple[float, float]
    evidence: str


@dataclass(frozen=True)
class Undecided:
    """A cause about which nothing can be said, and why."""

    cause: Cause
    reason: str


@dataclass(frozen=True)
class StepTime:
    """Milliseconds of a plain step."""

    median: float
    low: float
    high: float


@dataclass(frozen=True)
class Diagnosis:
    """The answer, as it is written to JSON."""

    schema: int
    sentence: str
    step_ms: StepTime | None
    steps: int
    overhead: Mapping[str, float]
    phases: Mapping[str, float]
    findings: tuple[ScriptFinding, ...]
    excluded: tuple[Exclusion, ...]
    cannot_tell: tuple[Undecided, ...]
    notes: tuple[str, ...] = ()


def without_paths(record: ScriptRecord) -> ScriptRecord:
    """As it may be published: a file outside the user's folder keeps only its name."""
    text = dumps(record).decode()
    for file in set(re.findall(r'"file": "(/[^"]*)"', text)):
        text = text.replace(file, f"…/{file.rpartition('/')[2]}")
    return from_dict(ScriptRecord, json.loads(text))
