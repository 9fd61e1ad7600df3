"""What does a run of somebody's own script leave behind? Raw facts: seconds, counts, lines.

Measuring fills `ScriptRecord`; analysis turns it into a `Diagnosis`. Seconds are seconds per step
wherever nothing else is said. What stands beside a field is its meaning in docs/json.md.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal, get_args

from diagnose.records.codec import dumps, from_dict
from diagnose.records.header import HIDDEN, Fact, Header, Reading

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


# Runs of one line in a step, and operators or reads in it; fewer are no loop over elements.
FEWEST_TRIPS = 8
FEWEST_LAUNCHES = 16
# Of the time of lines that read values back. Where nothing is waited for, reading takes time only
# as the operator that it is; Python that works on the values for longer is the cause itself.
READING_SHARE = 0.1
Mode = Literal["try", "watch"]

DEFAULT_SECONDS = 40.0
DEFAULT_WARMUP = 5


@dataclass(frozen=True)
class Options:
    """What the user asked for."""

    steps: int | None = None
    seconds: float = DEFAULT_SECONDS
    warmup: int = DEFAULT_WARMUP
    # A script that is tried ends with the trials; one that is watched runs to its own end.
    mode: Mode = "try"
    from_step: int = 0  # where watching begins
    keep_trace: str = ""  # the file for a profiler's trace of some steps


NO_READING, NO_FACT = Reading(None, "not recorded"), Fact(None, "not recorded")
# float32 tensors whose products may be computed with fewer bits inside.
TENSOR_FLOAT = "tf32"
# The two unchanged windows of every block.
PLAIN, AGAIN = "plain", "plain again"
# The suspect that is a loader which begins anew, with its workers.
STARTS = "loader starts"
# The suspect that is Python's garbage collector, wherever it is called.
GARBAGE = "garbage"
# The variant in which it leaves out what is there.
FROZEN = "frozen objects"
# The variant in which autograd does not look for NaN.
NO_ANOMALIES = "no anomaly detection"
# The variant in which all others are in effect together.
ALL = "all at once"


@dataclass(frozen=True)
class Site:
    """A line of the user's code."""

    file: str  # from the folder of the run; outside it the whole path
    line: int  # from 1 on
    function: str  # that the line is in
    code: str = ""  # the statement as it stood when it was measured
    # Where in an installed package most of its time passes, if most of it does.
    framework: str = field(default="", compare=False)


@dataclass(frozen=True)
class Suspect:
    """Work of one step that belongs together: one loop, one function or one line.

    `seconds` was sampled outside the backward pass; `backward_seconds` is the share of the
    backward pass that the operators of these lines caused. The rest was counted in mapped steps.
    """

    key: str  # its name in this record
    site: Site  # its hottest line
    phase: Phase  # of the step
    seconds: float  # sampled outside the backward pass
    backward_seconds: float = 0.0  # of the backward pass, caused by these lines
    operator_seconds: float = 0.0  # inside operators of the forward pass
    device_seconds: float = 0.0  # of its kernels, both passes; 0 where that was not recorded
    torch_seconds: float = 0.0  # in Python code of torch's own
    launches: int = 0  # operators that ask the device for work
    trips: int = 0  # how often its busiest line runs
    syncs: int = 0  # values read back by the host
    updates: int = 0  # operators that write into weights, outside torch's optimizers
    flops: int = 0  # of matrix products, both passes
    moved_bytes: int = 0  # read and written by its operators
    new_bytes: int = 0  # of large tensors, whose memory may come fresh from the system
    copy_seconds: float = 0.0  # operators that only change type, layout or device of a batch
    converted_seconds: float = 0.0  # calls that make tensors or arrays of Python's numbers
    snapshot_seconds: float = 0.0  # operators that only copy weights
    repeats: bool = False  # the same results again, in a step or in two whose batches differ
    feeds: bool = False  # makes what the model is given
    layers: bool = False  # its runs are layers: each has weights of its own and feeds the next


def replayed_name(key: str) -> str:
    """The variant in which a suspect's function gave back kept results."""
    return f"replayed {key}"


@dataclass(frozen=True)
class Window:
    """Consecutive steps of one variant."""

    block: int  # windows of one block are neighbors, and compared with each other
    variant: str  # what was changed in it; `plain` and `plain again`: nothing
    steps: int  # so many
    seconds: float  # of all its steps

    @property
    def per_step(self) -> float:
        return self.seconds / self.steps


@dataclass(frozen=True)
class Change:
    """What one variant changed in the running script, and whom it speaks for."""

    variant: str  # its name in the windows
    cause: Cause  # that it removes
    against: str  # the variant that it is compared with
    what: str  # it did, in words
    site: Site | None  # the line it speaks for; null: the whole step
    samples: float = 1.0  # batches in one step of it: of halved ones 0.5
    failed: str = ""  # how the script failed under it


@dataclass(frozen=True)
class Occasion:
    """Something that comes every so many steps, left out in some of them."""

    phase: Phase  # evaluation, checkpoint or logging
    function: str  # that was left out
    what: str  # what leaving it out means
    steps: int  # in which it could have come
    ran: tuple[float, ...]  # seconds of the steps with it
    left_out: tuple[float, ...]  # seconds of the steps that would have had it

    @property
    def times(self) -> int:
        return len(self.ran) + len(self.left_out)


@dataclass(frozen=True)
class SlowStep:
    """A sampled step that took much longer than the usual one."""

    step: int  # its number
    seconds: float  # that it took
    usual_seconds: float  # the median of all
    over: Mapping[str, float]  # seconds above the usual by phase; `garbage`: Python's collector
    page_faults: int  # above the usual
    switches: int  # to other processes, above the usual


@dataclass(frozen=True)
class Loader:
    """One DataLoader that the steps used."""

    site: Site | None  # where it was made
    workers: int  # processes; 0: the script's own
    batch_size: int | None  # null: it is given whole batches
    batch_seconds: float = 0.0  # to make one batch in this process; 0: not measured
    cores: int = 0  # that the job may use; 0: not known


@dataclass(frozen=True)
class Growth:
    """What became more from step to step."""

    site: Site | None  # the line that gets slower, else the one that fills it
    what: str  # the name of what grows
    holds_tensors: bool  # or numbers only
    # By which each step is slower than the one before, with its interval; 0 if not certain.
    seconds_per_step: float
    seconds_low: float  # lower end of its interval
    seconds_high: float  # upper end
    bytes_per_step: float  # by which memory grows; 0 if not certain
    suspect: str = ""  # the key of the work that takes longer and longer


@dataclass(frozen=True)
class RankTimes:
    """One rank of a distributed run."""

    rank: int  # its number
    step_seconds: float  # mean of its plain steps
    waiting_seconds: float  # sampled in calls that exchange something
    suspects: tuple[Suspect, ...]  # its own lines
    windows: tuple[Window, ...]  # its own windows


@dataclass(frozen=True)
class Ceilings:
    """What this device can do at best, measured beside the script."""

    flops_per_second: float  # of a large float32 matrix product
    double_flops_per_second: float  # in float64; 0: this device has no such product
    low_flops_per_second: float  # in `low_precision`
    bytes_per_second: float  # copied in memory, read and written bytes together
    fresh_bytes_per_second: float = 0.0  # given by the system on first touch; 0: at once
    tensor_float_flops_per_second: float = 0.0  # float32 with fewer bits inside (TF32)
    low_precision: str = "bfloat16"  # what this device uses for mixed precision

    def of(self, precision: str) -> float:
        """FLOP/s in one of the precisions that FLOPs are counted by; 0 where none was measured."""
        rates = {
            "float32": self.flops_per_second,
            "float64": self.double_flops_per_second,
            "float16": self.low_flops_per_second,
            "bfloat16": self.low_flops_per_second,
            TENSOR_FLOAT: self.tensor_float_flops_per_second,
        }
        return rates.get(precision, 0.0)


@dataclass(frozen=True)
class Autocast:
    """What a step does in lower precision on the CPU, because autocast is on."""

    site: Site | None  # where it is entered
    cast_share: float  # of the operators' time, in conversions to and from that precision
    low_share: float  # of the operators' time, in all others of that precision


@dataclass(frozen=True)
class Bound:
    """What removing some work could give back at most, by a replay of what waits for what."""

    cause: Cause  # that the work would vanish with
    site: Site | None  # to which most of that work belongs
    seconds: float  # that a step would take less
    what: str  # was left out in the replay
    idle: float = 0.0  # the device was seen to idle so long while the host did that


@dataclass(frozen=True)
class DeviceLine:
    """A line by what the device does for it."""

    site: Site  # the line
    seconds: float  # of kernels that it launched
    backward_seconds: float  # of kernels of its backward pass
    kernels: float  # of both
    flops: float  # of matrix products in them


@dataclass(frozen=True)
class Activity:
    """What the device did in a few steps that were recorded as they ran."""

    steps: int  # so many
    seconds: float  # of such a step, slowed down by the recording
    busy: float  # something of the step ran on the device
    idle: Mapping[str, float]  # nothing ran, by what the host did meanwhile
    kernels: float  # started in a step
    kernel_seconds: float  # the sum of their durations
    exposed_copy: float  # the device copied and did nothing else
    exposed_communication: float  # the device exchanged and did nothing else
    tensor_core_share: float  # of the kernels' time, by their names
    queue_length: float  # kernels that wait when one begins
    bounds: tuple[Bound, ...]  # what could come back at most, by cause
    lines: tuple[DeviceLine, ...] = ()  # the most expensive ones
    retries: float = 0.0  # of the allocator, which waits and frees everything that it kept
    simulated: bool = False  # by a stand-in for a device


@dataclass(frozen=True)
class TriedOption:
    """What `diagnose prove` said of one option, in twins of the script."""

    change: str  # its name behind `--with`
    sentence: str  # everything in one line
    speed: str  # FASTER, SLOWER, SAME or INCONCLUSIVE
    ratio: float | None  # time without it by time with it; above 1 it saves time
    ratio_ci: tuple[float, float] | None  # its 99 % interval
    equality: str  # whether it computes the same


@dataclass(frozen=True)
class ScriptRecord:
    """Everything that was measured while the script ran."""

    FILE_NAME: ClassVar[str] = "script.json"

    header: Header  # where, when and with what it was measured
    script: str  # its file name
    boundary: str  # what a step ends with
    steps: int  # all that were seen
    step_seconds: tuple[float, ...]  # plain ones, with only the boundary hook
    hook_seconds: float  # what the hook itself takes, per step
    phases: Mapping[str, float]  # seconds by phase
    sampled_steps: int  # in which the lines were sampled
    suspects: tuple[Suspect, ...]  # where the time passes, most first
    windows: tuple[Window, ...]  # raw times of changed and unchanged steps
    changes: tuple[Change, ...]  # what the variants of the windows are
    occasions: tuple[Occasion, ...]  # what comes only now and then
    loaders: tuple[Loader, ...]  # that feed the loop of the steps
    double_share: float  # of the operators' time, in float64
    double_site: Site | None  # where that type comes from
    flops: int  # of the matrix products of one step
    growth: Growth | None  # what grows from step to step; null: nothing
    ranks: tuple[RankTimes, ...]  # of a distributed run; empty for one process
    ceilings: Ceilings | None  # null: not measured
    update_bytes: int = 0  # of parameters, gradients and states: what one update has to move
    missing: str = ""  # why this record is not complete
    mode: Mode = "try"  # `watch`: nothing was changed, and gains are upper bounds
    mapped: bool = True  # operators were counted
    notes: tuple[str, ...] = ()  # what a reader should know
    flops_by_precision: Mapping[str, float] = field(default_factory=dict)  # adds up to `flops`
    samples: Reading = NO_READING  # rows that the model is given in one step
    tokens: Reading = NO_READING  # the same, where its input is token numbers
    device_busy: Reading = NO_READING  # share of a step that the device works
    device: Activity | None = None  # what the device did; null: there is none, or it was not seen
    commit: Fact = NO_FACT  # of the script's repository; "-dirty" if a tracked file differs
    arguments: tuple[str, ...] = ()  # of the script; in a kept record without their values
    run_seconds: float = 0.0  # from the first step to the last
    slow_steps: tuple[SlowStep, ...] = ()  # the slowest first
    prefixes: tuple[tuple[int, float], ...] = ()  # positions given to a model, and seconds, by call
    prefix_site: Site | None = None  # where the model is called so
    autocast: Autocast | None = None  # null: off, not on the CPU, or not seen
    tried_options: tuple[TriedOption, ...] = ()  # under --options


def without_paths(record: ScriptRecord) -> ScriptRecord:
    """As it may be published: of a file outside the user's folder its name, of an argument too."""
    text = dumps(replace(record, arguments=tuple(map(hide_value, record.arguments)))).decode()
    for file in set(re.findall(r'"file": "(/[^"]*)"', text)):
        text = text.replace(file, f"…/{file.rpartition('/')[2]}")
    return from_dict(ScriptRecord, json.loads(text))


def hide_value(word: str) -> str:
    """Values may be secrets, hosts or paths, whatever they are called."""
    name = re.match(r"--[A-Za-z][\w.-]*|-[A-Za-z]", word)
    if name is None:
        return HIDDEN
    return word if word == name.group() else f"{name.group()}={HIDDEN}"
