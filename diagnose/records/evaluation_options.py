"""What can be asked of an evaluation, and where does its result live? No torch here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from diagnose.records.evaluation import AccuracyRow
from diagnose.records.header import Setting

ACCURACY_PROGRAM = "diagnose.measure.evaluation.ranks"
ACCURACY_SCHEMA = 1
DTYPES = ("auto", "float32", "bfloat16", "float16")


@dataclass(frozen=True)
class Wanted:
    """What the user asked for; paths as text, because it travels as JSON."""

    workload: str
    size: str | None
    model: str | None
    data: str | None
    dtype: str
    max_new_tokens: int
    num_samples: int | None
    num_workers: int
    batch_size: int | None
    seed: int


@dataclass(frozen=True)
class WantedAccuracy:
    """What profile_accuracy.py can be asked for beside the model and the data."""

    evaluation: Wanted
    max_crops: tuple[int, ...]
    start_from: int | None
    auto_adjust: bool
    max_attempts: int
    output: str
    resume: bool


@dataclass(frozen=True)
class AccuracyResult:
    """What profile_accuracy.py writes; its rows grow by one max_crops at a time."""

    schema: int
    tool_version: str
    settings: Mapping[str, Setting]
    planned: tuple[int, ...]
    ranks: int
    summary: tuple[AccuracyRow, ...] = ()
    complete: bool = False


def parts_folder(output: Path) -> Path:
    return output.with_suffix(".parts")


def cap_folder(output: Path, max_crops: int) -> Path:
    return parts_folder(output) / f"max_crops-{max_crops}"


def predictions_folder(output: Path) -> Path:
    return output.with_suffix(".predictions")
