"""How do several ranks time the same steps? In blocks that all of them take in the same order.

The conventions are those of clock.py: a slot is K steps timed as a whole, a block is one slot of
every variant in random order. Here the order comes from one seed, every slot begins with a
barrier, and rank 0 decides how many steps a slot has and when it is enough; the others follow.
"""

from __future__ import annotations

import gc
import math
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

from diagnose.measure.clock import (
    CALIBRATION_MARGIN,
    MOST_BLOCKS,
    MOST_KEPT_WARMUPS,
    OVERHEAD_SHARE,
    Effort,
    StoppingRule,
    Timer,
    empty_pair_seconds,
)
from diagnose.measure.steady import unsteady_reason
from diagnose.records.ranks import ByRank
from diagnose.records.run import Timing

Failure = tuple[str, str]  # kind of end, and what goes on from "rank 1 ..."; ("", "") for none
NO_FAILURE: Failure = ("", "")
Describe = Callable[[Exception], Failure]


class StepFailed(Exception):
    """A step failed on some rank; raised on all of them, so that they can go on together."""


class Peers(Protocol):
    """What timing needs of the ranks; a Member is one."""

    rank: int

    def at(self, text: str) -> None:
        """Say where this rank is."""

    def gather_objects(self, value: Any) -> list[Any]:
        """One value of every rank, on every rank."""

    def broadcast(self, value: Any) -> Any:
        """The value of rank 0, on every rank."""

    def barrier(self) -> None:
        """Wait until every rank is here."""


def _nothing() -> None:
    pass


@dataclass(frozen=True)
class Variant:
    """One way to take a step. `alone`: only rank 0 works, the others wait idle meanwhile."""

    name: str
    step: Callable[[], object]
    before_slot: Callable[[], object] = _nothing
    after_slot: Callable[[], object] = _nothing
    alone: bool = False


@dataclass
class Track:
    """What was seen of one variant. The same on every rank, but for the starts."""

    variant: Variant
    steps: int = 1
    starts: list[float] = field(default_factory=list)  # on this rank's clock
    blocks: list[list[float]] = field(default_factory=list)  # [block][rank] seconds
    warmups: list[float] = field(default_factory=list)  # of the slowest rank
    not_steady: str = ""
    unmet: str = ""
    overhead_seconds: float = 0.0

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

    def timing(self) -> Timing:
        """As one variant of an experiment: the slowest rank's slots."""
        return Timing(
            steps_per_slot=self.steps,
            slot_starts=tuple(self.starts),
            slot_seconds=tuple(self.slowest),
            warmup_seconds=tuple(self.warmups[-MOST_KEPT_WARMUPS:]),
            not_steady=self.not_steady,
            unmet=self.unmet,
            overhead_seconds=self.overhead_seconds,
            step_clock_reason="slots of several ranks are timed as a whole",
        )


OnBlock = Callable[[Sequence[Track]], None]


def measure_together(
    variants: Sequence[Variant],
    effort: Effort,
    peers: Peers,
    timer: Timer,
    *,
    seed: int,
    stop: StoppingRule,
    on_block: OnBlock = lambda tracks: None,
    describe: Describe | None = None,
) -> list[Track]:
    """Time all variants in blocks until the rule is content, or time is up.

    The rule sees the steps of the slowest rank. With `describe`, an exception in a step on one
    rank becomes a StepFailed on all of them; without, it ends its rank.
    """
    run = _Run(peers, timer, describe)
    tracks = [Track(variant) for variant in variants]
    overhead = empty_pair_seconds(timer)
    slot_seconds = max(effort.slot_seconds, overhead / OVERHEAD_SHARE)
    for track in tracks:
        track.overhead_seconds = overhead
        run.warm_up(track, effort, effort.warmup_limit_seconds / len(tracks))
        run.calibrate(track, slot_seconds)
    order = random.Random(seed)
    began = timer.now()
    while True:
        for track in order.sample(tracks, len(tracks)):
            run.take_slot(track)
        unmet = list(stop([[each / track.steps for each in track.slowest] for track in tracks]))
        exhausted = timer.now() - began >= effort.limit_seconds
        enough = not any(unmet) or exhausted or len(tracks[0].blocks) >= MOST_BLOCKS
        for track, reason in zip(tracks, unmet, strict=True):
            track.unmet = reason
        on_block(tracks)
        if peers.broadcast(enough):
            return tracks


def attempt(work: Callable[[], object], describe: Describe | None) -> Failure:
    """Do the work; how it failed is an answer, if there is somebody to describe it."""
    try:
        work()
    # An option may fail in any way that its library knows; that is a row of the table.
    except Exception as error:
        if describe is None:
            raise
        return describe(error)
    return NO_FAILURE


def raise_shared(failures: Sequence[Sequence[str]]) -> None:
    """StepFailed if any rank failed, with the sentence of the one that is to blame."""
    failed = [(rank, kind, text) for rank, (kind, text) in enumerate(failures) if kind]
    if not failed:
        return
    # A rank whose peers went away has nothing to say about the cause.
    causes = [each for each in failed if each[1] != "lost peers"] or failed
    rank, _, text = causes[0]
    alike = len(failures) > 1 and [each[2] for each in causes] == [text] * len(failures)
    raise StepFailed(f"every rank {text}" if alike else f"rank {rank} {text}")


class _Run:
    """Slots and warm-ups that every rank takes together."""

    def __init__(self, peers: Peers, timer: Timer, describe: Describe | None) -> None:
        self._peers = peers
        self._timer = timer
        self._describe = describe

    def take_slot(self, track: Track) -> float:
        """One slot on every rank that works; returns the slowest rank's seconds."""
        variant = track.variant
        self._peers.at(f"step '{variant.name}'")
        failure = self._attempt(variant, variant.before_slot)
        self._peers.barrier()
        start = seconds = 0.0

        def time_steps() -> None:
            nonlocal start, seconds
            start, seconds = self._time(variant.step, track.steps)
            variant.after_slot()

        if failure == NO_FAILURE:
            failure = self._attempt(variant, time_steps)
        track.starts.append(start)
        track.blocks.append(self._exchange(seconds, failure))
        return max(track.blocks[-1])

    def calibrate(self, track: Track, slot_seconds: float) -> None:
        """As many steps as fill a slot: a slot too short to judge by grows tenfold at most."""
        while True:
            seconds = self.take_slot(track)
            growth = CALIBRATION_MARGIN * slot_seconds / max(seconds, slot_seconds / 10, 1e-9)
            wanted = track.steps if seconds >= slot_seconds else math.ceil(track.steps * growth)
            agreed = self._peers.broadcast(wanted)
            if agreed == track.steps:
                track.starts.clear()
                track.blocks.clear()
                return
            track.steps = agreed

    def warm_up(self, track: Track, effort: Effort, limit_seconds: float) -> None:
        variant, timer = track.variant, self._timer
        began = timer.now()
        footprints: list[int | None] = []
        failure = self._attempt(variant, variant.before_slot)
        seconds = 0.0

        def time_step() -> None:
            nonlocal seconds
            seconds = self._time(variant.step, 1)[1]

        ended = False
        while not ended:
            self._peers.at(f"warm-up of '{variant.name}'")
            if failure == NO_FAILURE:
                failure = self._attempt(variant, time_step)
            footprints.append(timer.footprint())
            track.warmups.append(max(self._exchange(seconds, failure)))
            elapsed = timer.now() - began
            exhausted = elapsed >= limit_seconds
            enough = elapsed >= effort.warmup_seconds and len(track.warmups) >= effort.warmup_steps
            reason = unsteady_reason(track.warmups, footprints, effort.window)
            verdict = [exhausted or (enough and not reason), reason]
            ended, track.not_steady = self._peers.broadcast(verdict)
        self._attempt(variant, variant.after_slot)

    def _attempt(self, variant: Variant, work: Callable[[], object]) -> Failure:
        """Do the work, if it is this rank's."""
        if variant.alone and self._peers.rank != 0:
            return NO_FAILURE
        return attempt(work, self._describe)

    def _exchange(self, seconds: float, failure: Failure) -> list[float]:
        told = self._peers.gather_objects([seconds, failure])
        raise_shared([each[1] for each in told])
        return [each[0] for each in told]

    def _time(self, step: Callable[[], object], steps: int) -> tuple[float, float]:
        timer = self._timer
        with _garbage_collection_off():
            timer.synchronize()
            start = timer.now()
            for _ in range(steps):
                step()
            timer.synchronize()
            return start, timer.now() - start


@contextmanager
def _garbage_collection_off() -> Iterator[None]:
    """A collection on one rank would make all the others wait for it."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
