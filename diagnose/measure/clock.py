"""How long does a step take? Warm up to a steady state, then time interleaved slots.

A slot is K consecutive steps of one variant, timed as a whole between two device
synchronizations. A block is one slot of every variant, in random order: on a shared machine
only such neighbours can be compared. Raw slots are returned; nothing is thrown away. Several
ranks take the same slots together: every slot begins with a barrier, and rank 0 decides how many
steps a slot has and when it is enough.
"""

from __future__ import annotations

import gc
import math
import random
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal, Protocol

from diagnose.measure.peers import (
    ALONE,
    NO_FAILURE,
    Describe,
    Failure,
    Peers,
    attempt,
    raise_shared,
)
from diagnose.measure.steady import unsteady_reason
from diagnose.records.ranks import ByRank
from diagnose.records.run import Timing
from diagnose.records.stats import hodges_lehmann

# A timer pair may cost at most this share of a slot (torch.utils.benchmark asks the same).
OVERHEAD_SHARE = 1e-4
# Single steps are stamped only in slots of so many steps: more would bloat the record, and
# steps that short are micro-benchmarks whose percentiles nobody asks for.
MOST_STAMPED_STEPS = 200
# Aim a little beyond the slot time, or noise would ask for one more round.
CALIBRATION_MARGIN = 1.1
MOST_KEPT_WARMUPS = 300
MOST_BLOCKS = 200


@dataclass(frozen=True)
class Effort:
    """How much time a measurement may take, and how sure it must be."""

    name: str
    warmup_seconds: float
    warmup_steps: int
    warmup_limit_seconds: float  # for all variants of a stage together
    window: int  # steps per steady-state window
    slot_seconds: float
    fewest_slots: int
    fewest_seconds: float
    half_width: float  # of the 95 % interval, relative
    limit_seconds: float  # for the slots of all variants of a stage together


# The protocol as it should be, for machines where a few minutes do not matter.
FULL = Effort("full", 3.0, 10, 120.0, 20, 0.5, 10, 3.0, 0.01, 240.0)
# Shorter windows and a wider interval: the whole ladder in two minutes on a laptop.
QUICK = Effort("quick", 0.5, 5, 5.0, 5, 0.1, 10, 1.0, 0.05, 12.0)
# For tests of everything around the numbers: the numbers themselves mean nothing.
SMOKE = Effort("smoke", 0.0, 1, 0.0, 1, 0.0, 6, 0.0, 1.0, 1.0)
EFFORTS = {effort.name: effort for effort in (QUICK, FULL, SMOKE)}


class Timer(Protocol):
    """The clock's view of a device. Tests pass one that only counts."""

    @property
    def step_clock(self) -> Literal["wall", "device events"]:
        """What the stamps are read from."""

    def now(self) -> float:
        """Seconds on the system's monotonic clock."""

    def synchronize(self) -> None:
        """Wait until the device has finished all it was given."""

    def stamp(self) -> object:
        """Mark the boundary of a step without waiting for the device."""

    def between(self, stamps: Sequence[object]) -> tuple[float, ...] | None:
        """Seconds between neighbouring stamps, or None if this device cannot tell."""

    def footprint(self) -> int | None:
        """Bytes that the allocator holds, to see whether it still grows."""


def nothing() -> None:
    """What most steps need around a slot."""


@dataclass(frozen=True)
class Timed:
    """One variant as the clock sees it: what to run, and what to do untimed around a slot."""

    name: str
    step: Callable[[], object]
    before_slot: Callable[[], object] = nothing
    after_slot: Callable[[], object] = nothing
    alone: bool = False  # of several ranks only the first works, the others wait idle meanwhile


Progress = Callable[[str, int, float], None]  # variant, slots done, seconds per step
# From the seconds per step in the slots of every variant to what is still missing of each ("" for
# nothing). Per step, because variants of one block have slots of different numbers of steps.
StoppingRule = Callable[[Sequence[Sequence[float]]], Sequence[str]]


@dataclass
class Track:
    """What was seen of one variant; on several ranks the same on each of them, but for starts."""

    variant: Timed
    steps: int = 1
    starts: list[float] = field(default_factory=list)  # on this rank's clock
    blocks: list[list[float]] = field(default_factory=list)  # [block][rank] seconds
    warmups: list[float] = field(default_factory=list)  # of the slowest rank
    not_steady: str = ""
    unmet: str = ""
    overhead_seconds: float = 0.0
    step_seconds: list[float] = field(default_factory=list)
    step_clock: Literal["wall", "device events", "none"] = "none"
    no_steps: str = ""  # why single steps are not known

    @property
    def slowest(self) -> list[float]:
        """A step of all ranks has ended when the last of them has."""
        return [max(block) for block in self.blocks]

    @property
    def by_rank(self) -> ByRank:
        ranks = len(self.blocks[0]) if self.blocks else 0
        working = range(1) if self.variant.alone else range(ranks)
        return tuple(
            tuple(block[rank] for block in self.blocks) if rank in working else ()
            for rank in range(ranks)
        )

    def forget_slots(self) -> None:
        for seen in (self.starts, self.blocks, self.step_seconds):
            seen.clear()
        self.no_steps = ""

    def timing(self) -> Timing:
        """The slots of the slowest rank, as they are recorded."""
        return Timing(
            steps_per_slot=self.steps,
            slot_starts=tuple(self.starts),
            slot_seconds=tuple(self.slowest),
            warmup_seconds=tuple(self.warmups[-MOST_KEPT_WARMUPS:]),
            not_steady=self.not_steady,
            unmet=self.unmet,
            overhead_seconds=self.overhead_seconds,
            step_seconds=() if self.no_steps else tuple(self.step_seconds),
            step_clock="none" if self.no_steps else self.step_clock,
            step_clock_reason=self.no_steps,
        )


def measure(
    variants: Sequence[Timed],
    effort: Effort,
    timer: Timer,
    *,
    seed: int,
    least_slot_seconds: float = 0.0,
    stop: StoppingRule | None = None,
    progress: Progress = lambda name, slots, seconds: None,
    peers: Peers = ALONE,
    describe: Describe | None = None,
    on_block: Callable[[Sequence[Track]], None] = lambda tracks: None,
) -> list[Track]:
    """Time all variants in interleaved blocks until the rule is content, or time is up.

    Without a rule every variant must be precise by itself. With peers all ranks take the same
    slots in the same order, the slowest rank counts, and rank 0 decides for all; with `describe`
    an exception in a step on one rank is a StepFailed on every rank.
    """
    overhead = empty_pair_seconds(timer)
    # Energy wants long slots, but ten of each variant must still fit into the time there is.
    affordable = effort.limit_seconds / (effort.fewest_slots * len(variants))
    slot_seconds = max(
        effort.slot_seconds, overhead / OVERHEAD_SHARE, min(least_slot_seconds, affordable)
    )
    run = _Run(timer, peers, describe)
    tracks: list[Track] = []
    distinct = [v for i, v in enumerate(variants) if v.step not in [w.step for w in variants[:i]]]
    for variant in variants:
        # A control is the same step again: it is warm, and must have slots of the same length.
        twin = next((each for each in tracks if each.variant.step == variant.step), None)
        track = Track(variant, overhead_seconds=overhead)
        if twin is None:
            run.warm_up(track, effort, effort.warmup_limit_seconds / len(distinct))
            run.calibrate(track, slot_seconds)
        else:
            track.steps, track.warmups = twin.steps, twin.warmups
            track.not_steady = twin.not_steady
        tracks.append(track)
    order = random.Random(seed)
    began = timer.now()
    while True:
        for track in order.sample(tracks, len(tracks)):
            seconds = run.take_slot(track)
            progress(track.variant.name, len(track.blocks), seconds / track.steps)
        if stop:
            unmet = stop([[each / track.steps for each in track.slowest] for track in tracks])
        else:
            unmet = [find_unmet(track.slowest, effort) for track in tracks]
        for track, reason in zip(tracks, unmet, strict=True):
            track.unmet = reason
        exhausted = timer.now() - began >= effort.limit_seconds
        on_block(tracks)
        enough = not any(unmet) or exhausted or len(tracks[0].blocks) >= MOST_BLOCKS
        if peers.broadcast(enough):
            return tracks


def empty_pair_seconds(timer: Timer) -> float:
    """What timing itself costs: the median of five empty synchronized pairs."""
    pairs = []
    for _ in range(5):
        timer.synchronize()
        began = timer.now()
        timer.synchronize()
        pairs.append(timer.now() - began)
    return statistics.median(pairs)


def find_unmet(seconds: Sequence[float], effort: Effort) -> str:
    """Which stopping condition is still open; precision is judged last, by width alone."""
    if len(seconds) < effort.fewest_slots:
        return f"only {len(seconds)} of {effort.fewest_slots} slots"
    if sum(seconds) < effort.fewest_seconds:
        return f"only {sum(seconds):.1f} of {effort.fewest_seconds:.1f} s of slots"
    width = hodges_lehmann([math.log(each) for each in seconds]).half_width
    if width is None:
        return "too few slots for an interval"
    if width > effort.half_width:
        return f"interval ±{width:.1%}, wanted ±{effort.half_width:.1%}"
    return ""


class _Run:
    """Slots and warm-ups that every rank takes together."""

    def __init__(self, timer: Timer, peers: Peers, describe: Describe | None) -> None:
        self._timer = timer
        self._peers = peers
        self._describe = describe

    def warm_up(self, track: Track, effort: Effort, limit_seconds: float) -> None:
        variant, timer = track.variant, self._timer
        began = timer.now()
        footprints: list[int | None] = []
        failure = self._attempt(variant, variant.before_slot)
        seconds = 0.0

        def time_step() -> None:
            nonlocal seconds
            with _garbage_collection_off():
                timer.synchronize()
                start = timer.now()
                variant.step()
                timer.synchronize()
                seconds = timer.now() - start

        ended = False
        while not ended:
            self._peers.at(f"warm-up of '{variant.name}'")
            if failure == NO_FAILURE:
                failure = self._attempt(variant, time_step)
            footprints.append(timer.footprint())
            track.warmups.append(max(self._exchange(seconds, failure)))
            elapsed = timer.now() - began
            enough = elapsed >= effort.warmup_seconds and len(track.warmups) >= effort.warmup_steps
            reason = unsteady_reason(track.warmups, footprints, effort.window)
            verdict = [elapsed >= limit_seconds or (enough and not reason), reason]
            ended, track.not_steady = self._peers.broadcast(verdict)
        self._attempt(variant, variant.after_slot)

    def calibrate(self, track: Track, slot_seconds: float) -> None:
        """As many steps as fill a slot: the warm-up's rate may be a wrong guess, a slot is not."""
        while True:
            seconds = self.take_slot(track)
            # A slot too short to extrapolate from grows tenfold at the most.
            growth = CALIBRATION_MARGIN * slot_seconds / max(seconds, slot_seconds / 10, 1e-9)
            wanted = track.steps if seconds >= slot_seconds else math.ceil(track.steps * growth)
            agreed = self._peers.broadcast(wanted)
            if agreed == track.steps:
                track.forget_slots()
                return
            track.steps = agreed

    def take_slot(self, track: Track) -> float:
        """One slot on every rank that works; returns the slowest rank's seconds."""
        variant = track.variant
        self._peers.at(f"step '{variant.name}'")
        failure = self._attempt(variant, variant.before_slot)
        self._peers.barrier()
        start = seconds = 0.0

        def time_steps() -> None:
            nonlocal start, seconds
            start, seconds = self._time(track)
            variant.after_slot()

        if failure == NO_FAILURE:
            failure = self._attempt(variant, time_steps)
        track.starts.append(start)
        track.blocks.append(self._exchange(seconds, failure))
        return max(track.blocks[-1])

    def _time(self, track: Track) -> tuple[float, float]:
        """Start and seconds of one slot; single steps are stamped where they are few."""
        timer, step = self._timer, track.variant.step
        stamps: list[object] = []
        if self._peers is not ALONE:
            track.no_steps = "slots of several ranks are timed as a whole"
        elif track.steps > MOST_STAMPED_STEPS:
            track.no_steps = f"slots of more than {MOST_STAMPED_STEPS} steps are timed as a whole"
        stamped = not track.no_steps
        with _garbage_collection_off():
            timer.synchronize()
            start = timer.now()
            if stamped:
                stamps.append(timer.stamp())
                for _ in range(track.steps):
                    step()
                    stamps.append(timer.stamp())
            else:
                for _ in range(track.steps):
                    step()
            timer.synchronize()
            seconds = timer.now() - start
        between = timer.between(stamps) if stamped else ()
        if between is None:
            track.no_steps = "this device's events carry no time"
        else:
            track.step_seconds += between
            track.step_clock = timer.step_clock
        return start, seconds

    def _attempt(self, variant: Timed, work: Callable[[], object]) -> Failure:
        """Do the work, if it is this rank's."""
        if variant.alone and self._peers.rank != 0:
            return NO_FAILURE
        return attempt(work, self._describe)

    def _exchange(self, seconds: float, failure: Failure) -> list[float]:
        heard = self._peers.gather_objects([seconds, failure])
        raise_shared([each[1] for each in heard])
        return [each[0] for each in heard]


@contextmanager
def _garbage_collection_off() -> Iterator[None]:
    """A collection inside a slot would be charged to whichever step it hits, on every rank."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
