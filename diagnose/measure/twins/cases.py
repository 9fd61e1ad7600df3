"""What is a planted script? One whose cause, line and repair are known."""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from diagnose.measure.jobs import ROOT

DIRECTORY = ROOT / "bench" / "planted"

SLOW, REPAIR = "slow.py", "fixed.patch"
# @@ -first,count +first,count @@ of a unified diff; a count of 1 is left out.
_HUNK = re.compile(r"@@ -(\d+)(?:,(\d+))? \+\d+(?:,(\d+))? @@")

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
    fixed_work: int = 1  # steps of the slow twin whose work one step of the repaired one does
    block_steps: int = 10  # a multiple of whatever cadence the script has
    # Steps at the head of a block that are not timed: a loader that could work ahead meanwhile
    # must have spent what it has.
    settle_steps: int = 2
    unseen: bool = False  # written without knowledge of the rules of the tool
    home: Path = DIRECTORY

    @property
    def directory(self) -> Path:
        return self.home / self.name

    @property
    def slow(self) -> Path:
        return self.directory / SLOW

    @property
    def repair(self) -> Path:
        return self.directory / REPAIR

    @property
    def is_healthy(self) -> bool:
        return not self.culprits

    @property
    def causes(self) -> tuple[str, ...]:
        return tuple(each.cause for each in self.culprits) or (HEALTHY,)


@dataclass(frozen=True)
class Length:
    """How a script is told when to end; by default it is not."""

    arguments: tuple[str, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)


UNLIMITED = Length()


def shortened(case: Case, steps: int) -> Length:
    """Planted scripts take the number of their steps from the command line or the environment."""
    texts = (each.read_text(encoding="utf-8") for each in case.directory.rglob("*.py"))
    if any('"--steps"' in text for text in texts):
        return Length(arguments=("--steps", str(steps)))
    return Length(variables={"STEPS": str(steps)})


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


class PatchError(ValueError):
    """A repair that does not fit the script that it is for."""


def fixed_script(case: Case, directory: Path) -> Path:
    """The repaired twin: the whole folder of the case, copied into the directory and patched."""
    home = directory / case.name
    shutil.copytree(case.directory, home, ignore=shutil.ignore_patterns("__pycache__", REPAIR))
    apply_patch(home, case.repair.read_text(encoding="utf-8"))
    return home / SLOW


def apply_patch(directory: Path, patch: str) -> None:
    """Change the files of the directory as a unified diff says, or raise PatchError.

    Every line that the diff expects must be where it expects it: no search, no fuzz.
    """
    for part in re.split(r"^--- a/", patch, flags=re.MULTILINE)[1:]:
        name, renamed, *body = part.splitlines(keepends=True)
        if renamed != f"+++ b/{name}":
            raise PatchError(f"{name.strip()} must keep its name")
        file = directory / name.strip()
        old = file.read_text(encoding="utf-8").splitlines(keepends=True)
        file.write_text("".join(_patched(name.strip(), old, body)), encoding="utf-8")


def _patched(name: str, old: Sequence[str], body: Sequence[str]) -> list[str]:
    new: list[str] = []
    done = at = 0  # lines of the old file that are copied, and of the body that are read
    while at < len(body):
        hunk = _HUNK.match(body[at])
        if hunk is None:
            raise PatchError(f"{name}: {body[at].strip()!r} begins no hunk")
        first, *counts = (int(number or 1) for number in hunk.groups())
        new += old[done : first - 1]
        done = first - 1
        at += 1
        left, made = counts
        while left or made:
            kind, line = (body[at][0], body[at][1:]) if at < len(body) else ("", "")
            if kind not in (" ", "-", "+"):
                raise PatchError(f"{name}: the hunk at line {first} is cut off")
            if kind != "+":
                if old[done : done + 1] != [line]:
                    raise PatchError(f"{name}:{done + 1} is not {line.strip()!r}")
                done += 1
                left -= 1
            if kind != "-":
                new.append(line)
                made -= 1
            at += 1
    return new + list(old[done:])
