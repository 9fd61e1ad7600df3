"""How long does a step take? Warm up to a steady state, then time interleaved slots.

A slot is K consecutive steps of one variant, timed as a whole between two device
synchronisations. A block is one slot of every variant, in random order: on a shared machine
only such neighbours can be compared. Raw slots are returned; nothing is thrown away.
"""

from __future__ import annotations

import gc
import math
import random
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Literal, Protocol

from diagnose.measure.steady import unsteady_reason
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


def _nothing() -> None:
    pass


@dataclass(frozen=True)
class Timed:
    """One variant as the clock sees it: what to run, and what to do untimed around a slot."""

    name: str
    step: Callable[[], object]
    before_slot: Callable[[], object] = _nothing
    after_slot: Callable[[], object] = _nothing


Progress = Callable[[str, int, float], None]  # variant, slots done, seconds per step
# From the seconds per step in the slots of every variant to what is still missing of each ("" for
# nothing). Per step, because variants of one block have slots of different numbers of steps.
StoppingRule = Callable[[Sequence[Sequence[float]]], Sequence[str]]


def measure(
    variants: Sequence[Timed],
    effort: Effort,
    timer: Timer,
    *,
    seed: int,
    least_slot_seconds: float = 0.0,
    stop: StoppingRule | None = None,
    progress: Progress = lambda name, slots, seconds: None,
) -> list[Timing]:
    """Time all variants in interleaved blocks until the rule is content, or time is up.

    Without a rule every variant must be precise by itself.
    """
    overhead = empty_pair_seconds(timer)
    # Energy wants long slots, but ten of each variant must still fit into the time there is.
    affordable = effort.limit_seconds / (effort.fewest_slots * len(variants))
    slot_seconds = max(
        effort.slot_seconds, overhead / OVERHEAD_SHARE, min(least_slot_seconds, affordable)
    )
    distinct = len({id(variant.step) for variant in variants})
    fair = replace(effort, warmup_limit_seconds=effort.warmup_limit_seconds / distinct)
    runs: list[_Run] = []
    for variant in variants:
        # A control is the same step again: it is warm, and must have slots of the same length.
        twin = next((run for run in runs if run.variant.step is variant.step), None)
        if twin is None:
            runs.append(_warm_up_and_calibrate(variant, fair, timer, slot_seconds))
        else:
            runs.append(twin.again(variant))
    order = random.Random(seed)
    began = timer.now()
    while True:
        for run in order.sample(runs, len(runs)):
            run.time_one_slot()
            progress(run.variant.name, len(run.seconds), run.seconds[-1] / run.steps)
        if stop:
            unmet = stop([[each / run.steps for each in run.seconds] for run in runs])
        else:
            unmet = [_unmet(run.seconds, effort) for run in runs]
        exhausted = timer.now() - began >= effort.limit_seconds
        if not any(unmet) or exhausted or len(runs[0].seconds) >= MOST_BLOCKS:
            return [run.timing(reason, overhead) for run, reason in zip(runs, unmet, strict=True)]


def empty_pair_seconds(timer: Timer) -> float:
    """What timing itself costs: the median of five empty synchronised pairs."""
    pairs = []
    for _ in range(5):
        timer.synchronize()
        began = timer.now()
        timer.synchronize()
        pairs.append(timer.now() - began)
    return statistics.median(pairs)


def _warm_up_and_calibrate(
    variant: Timed, effort: Effort, timer: Timer, slot_seconds: float
) -> _Run:
    values, not_steady = _warm_up(variant, effort, timer)
    run = _Run(variant, timer, values, not_steady)
    # From one step on: the warm-up's rate may be a wrong guess, a timed slot is not. A slot too
    # short to extrapolate from grows tenfold at the most.
    while (seconds := run.time_one_slot()) < slot_seconds:
        missing = CALIBRATION_MARGIN * slot_seconds / max(seconds, slot_seconds / 10)
        run.steps = math.ceil(run.steps * missing)
    run.forget_slots()
    return run


def _warm_up(variant: Timed, effort: Effort, timer: Timer) -> tuple[list[float], str]:
    values: list[float] = []
    footprints: list[int | None] = []
    began = timer.now()
    variant.before_slot()
    while True:
        timer.synchronize()
        start = timer.now()
        variant.step()
        timer.synchronize()
        values.append(timer.now() - start)
        footprints.append(timer.footprint())
        elapsed = timer.now() - began
        exhausted = elapsed >= effort.warmup_limit_seconds
        enough = elapsed >= effort.warmup_seconds and len(values) >= effort.warmup_steps
        if not enough and not exhausted:
            continue
        reason = unsteady_reason(values, footprints, effort.window)
        if not reason or exhausted:
            variant.after_slot()
            return values, reason


class _Run:
    """The slots of one variant while they are being taken."""

    def __init__(
        self, variant: Timed, timer: Timer, warmups: Sequence[float], not_steady: str
    ) -> None:
        self.variant = variant
        self.steps = 1
        self.seconds: list[float] = []
        self._timer = timer
        self._warmups = warmups
        self._not_steady = not_steady
        self.forget_slots()

    def again(self, variant: Timed) -> _Run:
        """A run of the same step under another name."""
        run = _Run(variant, self._timer, self._warmups, self._not_steady)
        run.steps = self.steps
        return run

    def forget_slots(self) -> None:
        self.seconds.clear()
        self._starts: list[float] = []
        self._step_seconds: list[float] = []
        self._steps_timed = True
        self._collections = 0

    def time_one_slot(self) -> float:
        timer, step = self._timer, self.variant.step
        stamps: list[object] = []
        self.variant.before_slot()
        with _garbage_collection_off() as collections:
            timer.synchronize()
            start = timer.now()
            if self.steps <= MOST_STAMPED_STEPS:
                stamps.append(timer.stamp())
                for _ in range(self.steps):
                    step()
                    stamps.append(timer.stamp())
            else:
                for _ in range(self.steps):
                    step()
            timer.synchronize()
            seconds = timer.now() - start
        self._collections += collections()
        self.variant.after_slot()
        self.seconds.append(seconds)
        self._starts.append(start)
        self._keep_steps(stamps)
        return seconds

    def _keep_steps(self, stamps: Sequence[object]) -> None:
        between = self._timer.between(stamps) if stamps else None
        if between is None:
            self._steps_timed = False
        else:
            self._step_seconds.extend(between)

    def timing(self, unmet: str, overhead: float) -> Timing:
        stamped = self.steps <= MOST_STAMPED_STEPS
        if not self._steps_timed:
            reason = (
                "this device's events carry no time"
                if stamped
                else f"slots of more than {MOST_STAMPED_STEPS} steps are timed as a whole"
            )
        return Timing(
            steps_per_slot=self.steps,
            slot_starts=tuple(self._starts),
            slot_seconds=tuple(self.seconds),
            warmup_seconds=tuple(self._warmups[-MOST_KEPT_WARMUPS:]),
            not_steady=self._not_steady,
            unmet=unmet,
            overhead_seconds=overhead,
            step_seconds=tuple(self._step_seconds) if self._steps_timed else (),
            step_clock=self._timer.step_clock if self._steps_timed else "none",
            step_clock_reason="" if self._steps_timed else reason,
            gc_collections=self._collections,
        )


def _unmet(seconds: Sequence[float], effort: Effort) -> str:
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


@contextmanager
def _garbage_collection_off() -> Iterator[Callable[[], int]]:
    """A collection inside a slot would be charged to whichever step it hits."""

    def collections() -> int:
        return sum(generation["collections"] for generation in gc.get_stats())

    before, was_on = collections(), gc.isenabled()
    gc.disable()
    try:
        yield lambda: collections() - before
    finally:
        if was_on:
            gc.enable()
