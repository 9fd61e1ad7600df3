"""What is the answer about somebody's script? The JSON of `diagnose script --json`.

Derived from the record, and written with it. Milliseconds, as a reader sees them. docs/json.md is
made of these classes: what stands beside a field is its meaning there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from diagnose.records.header import Fact, Reading
from diagnose.records.script import Cause, ScriptRecord, TriedOption

# Raised when a field is renamed, removed or changes its meaning; new fields leave it as it is.
#   2  the numbers first: mean, speed, worth; options; environment and the whole record
#   1  first version
SCHEMA = 2


@dataclass(frozen=True)
class ScriptFinding:
    """One cause, with what removing it gives back."""

    cause: Cause  # one of fifteen
    file: str  # empty: the whole step
    line: int  # 0: the whole step
    function: str  # that the line is in
    gain_ms: float  # per step, never more than the step
    gain_ci: tuple[float, float]  # its 95 % interval
    share: float  # of a mean step
    verified: bool  # true: tried in windows of changed steps; false: estimated
    evidence: str  # what was seen or tried
    advice: str  # what to do
    framework: str = ""  # where in an installed package the line leads to, if it does
    code: str = ""  # the statement that stands there
    edit: tuple[str, ...] = ()  # the line, as it stands and as it should; empty: no simple edit
    after_ms: float = 0.0  # of `gain_ms`, what is left once the findings above are fixed
    after_ci: tuple[float, float] = (0.0, 0.0)  # its interval


@dataclass(frozen=True)
class Option:
    """Something that may be faster and changes the numbers or the training: no cause."""

    what: str  # the change
    why: str  # what was measured here that speaks for it
    changes: str  # what it changes in the results
    command: str = ""  # what tries it
    tried: TriedOption | None = None  # what that said, under --options


@dataclass(frozen=True)
class Exclusion:
    """A cause that was looked for and cannot give back much."""

    cause: Cause  # one of fifteen
    gain_ci: tuple[float, float]  # ms per step that removing it could save
    evidence: str  # what was seen or tried


@dataclass(frozen=True)
class Undecided:
    """A cause about which nothing can be said, and why."""

    cause: Cause  # `compute`: the run as a whole
    reason: str  # why


@dataclass(frozen=True)
class StepTime:
    """Milliseconds of a plain step."""

    mean: float  # with what comes only now and then
    median: float  # of a usual step
    low: float  # lower end of the 95 % interval of a usual step
    high: float  # upper end
    tail: float = 0.0  # 19 of 20 steps take less


@dataclass(frozen=True)
class Expected:
    """Milliseconds of a mean step after all findings are fixed."""

    mean: float  # the most likely
    low: float  # lower end of its interval
    high: float  # upper end


@dataclass(frozen=True)
class Speed:
    """What the job gets done, over mean steps."""

    samples_per_second: Reading  # of one rank
    tokens_per_second: Reading  # of one rank, where the model is given token numbers
    device_busy: Reading  # share of a step that the device works
    utilization: Reading  # of the speed of large matrix products here; above 1: they were too slow
    precision: str  # that most FLOPs are computed in; empty: unknown


@dataclass(frozen=True)
class Worth:
    """What fixes give back, in seconds, with the 95 % interval."""

    fixes: int  # 1: the first finding; more: all of them, as far as they do not overlap
    per_1000_steps: float  # seconds
    per_1000_steps_ci: tuple[float, float]  # its interval
    per_day: float  # seconds of every 24 hours of this job
    per_day_ci: tuple[float, float]  # its interval


@dataclass(frozen=True)
class Environment:
    """Where the job ran, in short; `record.header` has everything."""

    tool: str  # version of this tool
    torch: Fact  # its version
    python: Fact  # its version
    device: str  # cpu, cuda, or an accelerator's own name
    device_name: str  # as its maker calls it
    commit: Fact  # of the script's repository
    dirty: bool | None  # whether a tracked file differs from it; null: unknown
    script: str  # its file name
    arguments: tuple[str, ...]  # of the script


@dataclass(frozen=True)
class Diagnosis:
    """The answer. Fields that were not measured are null, or have a reason."""

    schema: int  # of this file
    sentence: str  # the first line of the verdict
    step_ms: StepTime | None  # null: no step was timed
    steps: int  # all that were seen
    overhead: Mapping[str, float]  # `share`: of an unmodified step that measuring takes
    phases: Mapping[str, float]  # ms per step
    findings: tuple[ScriptFinding, ...]  # largest gain first
    excluded: tuple[Exclusion, ...]  # looked for, and not it
    cannot_tell: tuple[Undecided, ...]  # neither found nor excluded
    notes: tuple[str, ...] = ()  # what a reader should know
    speed: Speed | None = None  # null: no step was timed
    worth: tuple[Worth, ...] = ()  # of the first fix, and of all if there are several
    options: tuple[Option, ...] = ()  # what may help and changes the numbers
    environment: Environment | None = None  # null: an answer without a record
    expected_ms: Expected | None = None  # null: nothing to fix
    slow_steps: str = ""  # which steps are slow and why; empty: none stands out
    record: ScriptRecord | None = None  # everything that was measured, ranks and windows included


@dataclass(frozen=True)
class Gate:
    """The share of a step that one cause, or any, may take at most."""

    cause: Cause | None  # null: any
    share: float  # of a mean step

    @property
    def name(self) -> str:
        return f"{self.cause or 'any'}>{self.share * 100:g}%"
