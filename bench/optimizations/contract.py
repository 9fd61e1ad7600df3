"""What is an optimisation? Two ways to do the same, how to prove it, and what to time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import torch

from bench.workload import Size

# What the data are like. Real sentences differ in length and their candidates do not repeat;
# the other two show when a change is right only by chance.
Condition = Literal["real data", "constant lengths", "duplicate candidates"]
Fact = str | int | float | bool | None


@dataclass(frozen=True)
class Lab:
    """Where an optimisation is tried: a device, a size, a seed, and real data."""

    device: torch.device
    size: Size
    seed: int
    data: Path | None = None
    condition: Condition = "real data"


def _nothing() -> None:
    pass


@dataclass(frozen=True)
class Trial:
    """One side, built and ready to be timed."""

    step: Callable[[], object]
    samples_per_step: int
    # What must stay as it was while the trial is timed; None for one that trains.
    parameters: Callable[[], list[torch.Tensor]] | None = None
    before_slot: Callable[[], object] = _nothing
    after_slot: Callable[[], object] = _nothing


OpenTrial = Callable[[Lab], AbstractContextManager[Trial]]


@dataclass(frozen=True)
class Side:
    """One way to do it."""

    text: str
    # From the lab's seed and data to named tensors that the other side must reproduce. Tensors
    # under names that start with "per sample" have one row per sample.
    outcome: Callable[[Lab], Mapping[str, torch.Tensor]]
    trials: Mapping[str, OpenTrial]  # by scope: "forward", "training step", "batch", ...
    condition: Condition = "real data"


@dataclass(frozen=True)
class Optimization:
    """An entry of the catalogue."""

    key: str
    title: str
    before: Side
    after: Side
    published: tuple[Side, ...] = ()  # as the original report printed it, where that differs
    # Largest |a - b| / (1 + |a|) that still counts as equal.
    tolerance: float = 0.0
    # False where the numbers are meant to change (precision); they are then shown, not proven.
    claims_equality: bool = True
    facts: Callable[[Lab], Mapping[str, Fact]] | None = None
    # Losses of both sides at equal numbers of samples, where the numerics may change.
    curves: Callable[[Lab], Mapping[str, tuple[float, ...]]] | None = None
    # Why it does not apply here, or "".
    obstacle: Callable[[Lab], str] = field(default=lambda lab: "")


@dataclass(frozen=True)
class Ladder:
    """A job that is described by settings, so that changes can be put on top of each other."""

    scope: str  # what one step is: "epoch", "training step"
    base: Mapping[str, Fact]
    # By key of the optimisation: the settings that it changes.
    patches: Mapping[str, Mapping[str, Fact]]
    open: Callable[[Mapping[str, Fact]], OpenTrial]


@dataclass(frozen=True)
class Treatment:
    """All that can be tried on a workload."""

    # In the order in which they are tried; the order is the author's argument.
    optimizations: tuple[Optimization, ...]
    # Whose operators are counted line by line, by name ("original", "optimised"): the patient
    # first. Empty: the workload's own training step, as it is.
    mapped: Mapping[str, OpenTrial] = field(default_factory=dict)
    # The workload's best step; its pace is held against that of the plain backbone.
    best: OpenTrial | None = None
    # Measured after the single changes, in the order of what each gained.
    ladder: Ladder | None = None
    # Each step is a whole epoch or pass, so that a quick run has time for few of them.
    long_steps: bool = False


def find(treatment: Treatment, key: str) -> Optimization:
    return next(each for each in treatment.optimizations if each.key == key)


def rows_per_sample(name: str) -> bool:
    return name.startswith("per sample")
