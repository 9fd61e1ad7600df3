"""What does `accuracy` leave behind? The truth, what was said, and the twins."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from diagnose.records.header import Header, Reading


@dataclass(frozen=True)
class PlantedCulprit:
    """One cause that was put into a script on purpose."""

    cause: str
    file: str
    lines: tuple[int, ...]  # the one to change, and the one where its time passes


@dataclass(frozen=True)
class Said:
    """One finding of the tool; a gain is seconds per step."""

    cause: str
    file: str
    line: int
    gain_seconds: float
    share: float  # of a step while the tool watched
    verified: bool


@dataclass(frozen=True)
class Answer:
    """What the tool said about one script."""

    sentence: str
    steps: int
    step_seconds: Reading
    overhead_share: Reading
    findings: tuple[Said, ...]  # the largest gain first


@dataclass(frozen=True)
class Twins:
    """Seconds per step of both scripts; block i of both ran one after the other."""

    slow_seconds: tuple[float, ...]
    fixed_seconds: tuple[float, ...]
    fixed_work: int  # steps of the slow script whose work one step of the other does

    def __post_init__(self) -> None:
        if not self.slow_seconds or len(self.slow_seconds) != len(self.fixed_seconds):
            raise ValueError("twins need as many blocks of one side as of the other, and one each")


@dataclass(frozen=True)
class CaseResult:
    """One planted script: what is true of it, what was said, and what its twin takes."""

    name: str
    culprits: tuple[PlantedCulprit, ...]  # the costliest first; none in a healthy script
    answer: Answer | None
    answer_reason: str = ""  # why the tool gave none
    twins: Twins | None = None
    twins_reason: str = ""
    seconds: float = 0.0  # that the tool took
    unseen: bool = False  # written without knowledge of the tool's rules

    def __post_init__(self) -> None:
        if self.answer is None and not self.answer_reason:
            raise ValueError(f"{self.name}: no answer needs a reason")
        if self.twins is None and not self.twins_reason:
            raise ValueError(f"{self.name}: no twins need a reason")


@dataclass(frozen=True)
class AccuracyRecord:
    """One `make accuracy`."""

    FILE_NAME: ClassVar[str] = "accuracy.json"

    header: Header
    tool: str  # the command that was judged
    planned: tuple[str, ...]
    script_seconds: float | None = (
        None  # after which each ended by itself; None: later than the tool
    )
    cases: tuple[CaseResult, ...] = ()
    complete: bool = False

    @property
    def is_short(self) -> bool:
        return self.script_seconds is not None
