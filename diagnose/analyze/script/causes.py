"""What do the lines that were seen suffer from? The cause of each, and its gain as an estimate.

No rule knows a name of the script's: only where the time passes, what the operators there do,
and what their results are used for.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from types import ModuleType

from diagnose.analyze.script.claims import NOW_AND_THEN, Claim, add
from diagnose.analyze.script.prefix import judge_prefix
from diagnose.analyze.units import number
from diagnose.records.script import (
    CAUSES,
    FEWEST_LAUNCHES,
    FEWEST_TRIPS,
    GARBAGE,
    READING_SHARE,
    STARTS,
    Cause,
    ScriptRecord,
    Site,
    Suspect,
)
from diagnose.records.stats import Interval

# Of a line's time: so much is overhead where its operators are small.
OVERHEAD_SHARE = 0.5
# Of a group's time outside operators, from which on it is Python's.
HOST_SHARE = 0.5
# Of the operators' time that only changes type or layout.
COPY_SHARE = 1 / 3
# A fused update moves about what so many operators do: it reads weight, gradient and states.
FUSED_OPERATORS = 2
# Of the operators that read a value back.
SYNC_SHARE = 0.2
_FREEZE = (
    "call gc.freeze() once everything is loaded, so that the collector does not visit it again; "
    "make fewer objects here, or collect every so many steps (gc.disable(), gc.collect())"
)
_KEEP_LOADER = (
    "take the batches of many steps from one iterator (`batches = iter(loader)` before the loop), "
    "or let the workers live on with persistent_workers=True"
)
_ADVICE = {GARBAGE: _FREEZE, STARTS: _KEEP_LOADER}
_PREFETCH = (
    "nothing waits for this copy, but the device does nothing else meanwhile: copy the next batch "
    "on a stream of its own (`with torch.Stream():`) while this one is computed"
)
_COLLECT = "gc.collect("
_LEAVE_TO_PYTHON = (
    "leave collecting to Python, or call gc.collect() only every so many hundred steps"
)
# Sampled seconds are a count: their error is about that of this many samples per second.
SAMPLES_PER_SECOND = 400.0


@dataclass(frozen=True)
class _Work:
    """One group of lines, with what its judgement rests on."""

    suspect: Suspect
    record: ScriptRecord

    @property
    def seconds(self) -> float:
        """Of host or device, whichever is behind: a line inside a model only queues its work."""
        suspect = self.suspect
        host = suspect.seconds + suspect.backward_seconds
        # The mapped steps do not say how often something comes that does not come in every one.
        return host if suspect.phase in NOW_AND_THEN else max(host, suspect.device_seconds)

    @functools.cached_property
    def operators(self) -> float:
        """Seconds inside operators; a module's own Python code is not the script's to save."""
        suspect = self.suspect
        inside = suspect.torch_seconds if suspect.phase == "forward" else 0.0
        operators = max(suspect.operator_seconds, inside) + self._fresh_seconds
        return min(operators, suspect.seconds)

    @property
    def python_share(self) -> float:
        return 1 - self.operators / self.suspect.seconds if self.suspect.seconds else 0.0

    @property
    def wasted(self) -> float:
        """What would come back if one run of the line did the work of all."""
        suspect = self.suspect
        loops = suspect.trips >= FEWEST_TRIPS and suspect.launches >= FEWEST_LAUNCHES
        if not loops or suspect.layers:
            return 0.0
        wasted = self.seconds - max(self._needed_seconds, self.seconds / suspect.trips)
        return wasted if wasted >= OVERHEAD_SHARE * self.seconds else 0.0

    @property
    def _fresh_seconds(self) -> float:
        """What its operators may take longer where the system gives them fresh memory.

        Whether it does depends on what lies beside it on the heap, and so on being watched.
        """
        ceilings = self.record.ceilings
        rate = ceilings.fresh_bytes_per_second if ceilings is not None else 0.0
        return self.suspect.new_bytes / rate if rate else 0.0

    @property
    def _needed_seconds(self) -> float:
        """What the arithmetic and the bytes alone would take at this device's best.

        Fresh memory, which only large results are given, would be needed all the same.
        """
        suspect, ceilings = self.suspect, self.record.ceilings
        if ceilings is None or not ceilings.flops_per_second or not ceilings.bytes_per_second:
            return 0.0
        moved, fresh = suspect.moved_bytes, self._fresh_seconds
        if _updates(self):
            # One pass over all tensors is enough, in place, however many operators there are now.
            once = moved * FUSED_OPERATORS * suspect.updates // max(1, suspect.launches)
            moved, fresh = min(moved, self.record.update_bytes or once or moved), 0.0
        arithmetic = suspect.flops / ceilings.flops_per_second
        return max(arithmetic, moved / ceilings.bytes_per_second) + fresh


@dataclass(frozen=True)
class _Rule:
    """What work suffers from; `evidence` may name facts of the suspect."""

    cause: Cause | None  # None: it simply computes
    applies: Callable[[_Work], bool]
    evidence: str = ""
    gain: Callable[[_Work], float] = lambda work: work.seconds


def _in_phase(*phases: str) -> Callable[[_Work], bool]:
    return lambda work: work.suspect.phase in phases


def _is_torchs_own_update(work: _Work) -> bool:
    """Which is tried in another form."""
    return work.suspect.phase == "optimizer" and work.suspect.trips < FEWEST_TRIPS


def _updates(work: _Work) -> bool:
    """In an optimizer of the user's, or by hand in the loop."""
    return work.suspect.phase == "optimizer" or work.suspect.updates >= FEWEST_TRIPS


def _only_copies(work: _Work) -> bool:
    suspect = work.suspect
    # A tensor that is made of tensors reads their values.
    converts = suspect.converted_seconds if suspect.syncs < FEWEST_LAUNCHES else 0.0
    mostly = suspect.copy_seconds + converts >= COPY_SHARE * suspect.operator_seconds > 0
    return suspect.phase == "host" and mostly and work.python_share < HOST_SHARE


def _keeps_weights(work: _Work) -> bool:
    suspect = work.suspect
    mostly = suspect.snapshot_seconds >= COPY_SHARE * suspect.operator_seconds > 0
    return suspect.phase == "host" and mostly


def _reads_back(work: _Work) -> bool:
    syncs = work.suspect.syncs
    waits = work.record.device is not None
    takes_time = waits or work.python_share < 1 - READING_SHARE
    return syncs >= FEWEST_LAUNCHES and syncs >= SYNC_SHARE * work.suspect.launches and takes_time


def _is_python(work: _Work) -> bool:
    return work.python_share >= HOST_SHARE and work.suspect.launches < FEWEST_LAUNCHES * 64


def _is_garbage(work: _Work) -> bool:
    return work.suspect.key == GARBAGE


_BY_PHASE: tuple[_Rule, ...] = (
    _Rule("evaluation", _in_phase("evaluation"), "evaluation of the model"),
    _Rule("host", _in_phase("checkpoint", "logging"), "{phase} in the step"),
    _Rule("communication", _in_phase("communication"), "waiting for other ranks"),
    _Rule("input", lambda work: work.suspect.key == STARTS, "starting the loader anew"),
    _Rule("input", _in_phase("input"), "waiting for the loader"),
    _Rule("host", _is_garbage, "Python's garbage collector, called from here"),
    _Rule(None, _in_phase("backward")),
)
# Python or operators: nobody has counted, so only a trial can say what it would save.
_ANYTHING = _Rule("host", _in_phase("host"), "work outside the model, operators not counted")
_RULES_UNMAPPED = (*_BY_PHASE, _ANYTHING)
_MANY = "{launches} operators per step, {trips} runs of the line"
# The first that applies decides.
_RULES: tuple[_Rule, ...] = (
    *_BY_PHASE,
    _Rule(None, _is_torchs_own_update),
    _Rule(
        "recompute",
        lambda work: work.suspect.repeats,
        "results that were there already, from this step or one with another batch",
    ),
    _Rule("host", _keeps_weights, "copies of the weights"),
    _Rule("transfer", _only_copies, "work that only copies or converts"),
    _Rule("input", lambda work: work.suspect.feeds, "making the model's input"),
    _Rule("sync", _reads_back, "{syncs} values read back per step"),
    _Rule(
        "optimizer",
        lambda work: _updates(work) and work.wasted > 0,
        _MANY,
        lambda work: work.wasted,
    ),
    _Rule("launch", lambda work: work.wasted > 0, _MANY, lambda work: work.wasted),
    _Rule(
        "host",
        _is_python,
        "{phase} work without operators",
        lambda work: work.seconds - work.operators,
    ),
)


def judge_seen(record: ScriptRecord) -> Iterator[Claim]:
    """The causes with a file of their own are asked first; the rules judge the lines they leave."""
    own = [claim for each in CAUSES if (file := file_of(each)) for claim in file.judge(record)]
    own += judge_prefix(record)
    taken = {claim.suspect.key for claim in own if claim.suspect is not None}
    claims = [_judge(each, record) for each in record.suspects if each.key not in taken]
    yield from _join([claim for claim in claims if claim is not None])
    yield from own


@functools.cache
def file_of(cause: Cause) -> ModuleType | None:
    """<cause>.py beside this file, where a rule for lines is not enough: `judge` and ADVICE."""
    name = f"{__package__}.{cause}"
    return importlib.import_module(name) if importlib.util.find_spec(name) else None


def _judge(suspect: Suspect, record: ScriptRecord) -> Claim | None:
    work = _Work(suspect, record)
    rules = _RULES if record.mapped else _RULES_UNMAPPED
    rule = next((each for each in rules if each.applies(work)), None)
    if rule is None or rule.cause is None:
        return None
    seconds = rule.gain(work)
    samples = max(1.0, seconds * record.sampled_steps * SAMPLES_PER_SECOND)
    reach = 2 * seconds / samples**0.5
    evidence = rule.evidence.format(**vars(suspect))
    least = 0.0 if rule is _ANYTHING else max(0.0, seconds - reach)
    return Claim(
        rule.cause,
        suspect.site,
        Interval(seconds, least, seconds + reach),
        verified=False,
        evidence=f"{evidence}, {number(seconds * 1e3, 3)} ms per step seen at this line",
        suspect=suspect,
        advice=_LEAVE_TO_PYTHON
        if suspect.key == GARBAGE and _COLLECT in suspect.site.code
        else advise_copy(rule.cause, suspect, record) or _ADVICE.get(suspect.key, ""),
    )


def advise_copy(cause: Cause, suspect: Suspect | None, record: ScriptRecord) -> str:
    """A copy that nobody waits for is pinned and non-blocking already."""
    copies = cause == "transfer" and suspect is not None and suspect.copy_seconds > 0
    on_device = record.device is not None and suspect is not None and not suspect.syncs
    return _PREFETCH if copies and on_device else ""


def _join(claims: Sequence[Claim]) -> list[Claim]:
    """Estimates of the same cause in the same function are one: its lines belong together."""
    joined: dict[object, Claim] = {}
    for claim in claims:
        site = claim.site or Site("", 0, "")
        phase = claim.suspect.phase if claim.suspect is not None else ""
        key = (claim.cause, site.file, site.function, phase, claim.advice)
        earlier = joined.get(key)
        if earlier is None:
            joined[key] = claim
        else:
            larger = max(earlier, claim, key=lambda each: each.gain.center)
            joined[key] = replace(larger, gain=add(earlier.gain, claim.gain))
    return list(joined.values())
