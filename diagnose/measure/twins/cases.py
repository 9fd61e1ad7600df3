"""What is a planted script? One whose cause, line and repair are known."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from diagnose.measure.jobs import ROOT

DIRECTORY = ROOT / "bench" / "planted"

SLOW, FIXED = "slow.py", "fixed.py"

# The closed list of what a step can suffer from; "compute" is health.
CAUSES = (
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
)
HEALTHY = "compute"

# Sums in another order differ in the last digits of a float32, and training adds them up.
ROUNDING = 1e-3


@dataclass(frozen=True)
class Culprit:
    """One planted cause and the file that it is in, as seen from the directory of the case."""

    cause: str
    file: str = SLOW


@dataclass(frozen=True)
class Case:
    """One planted script, and how it is to be timed against its twin."""

    name: str
    culprits: tuple[Culprit, ...]  # the costliest first; none in a healthy script
    # How far the losses that both twins print may differ; None where the repair changes them.
    tolerance: float | None = 0.0
    ranks: int = 1  # above 1 it wants torchrun
    fixed_work: int = 1  # steps of slow.py whose work one step of fixed.py does
    block_steps: int = 10  # a multiple of whatever cadence the script has
    # Steps at the head of a block that are not timed: a loader that could work ahead meanwhile
    # must have spent what it has.
    settle_steps: int = 2
    unseen: bool = False  # written without knowledge of the rules of the tool

    @property
    def directory(self) -> Path:
        return DIRECTORY / self.name

    @property
    def slow(self) -> Path:
        return self.directory / SLOW

    @property
    def fixed(self) -> Path:
        return self.directory / FIXED

    @property
    def is_healthy(self) -> bool:
        return not self.culprits

    @property
    def causes(self) -> tuple[str, ...]:
        return tuple(each.cause for each in self.culprits) or (HEALTHY,)


def find_lines(case: Case, culprit: Culprit) -> tuple[int, ...]:
    """The line to change, and the one where its time passes if that is marked as well."""
    lines = (case.directory / culprit.file).read_text(encoding="utf-8").splitlines()
    marks = (f"# culprit: {culprit.cause}", f"# cost: {culprit.cause}")
    change, cost = (
        [number for number, line in enumerate(lines, 1) if line.endswith(mark)] for mark in marks
    )
    if len(change) != 1 or len(cost) > 1:
        raise ValueError(
            f"{case.name}/{culprit.file} must mark one line for {culprit.cause}, "
            f"not {len(change)} (and at most one for its cost, not {len(cost)})"
        )
    return (*change, *cost)
