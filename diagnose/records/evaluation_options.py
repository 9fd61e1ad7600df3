"""What can be asked of an evaluation, what does it write, and where? No torch here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from diagnose.records.evaluation import AccuracyRow, Fallback
from diagnose.records.header import Setting

PROGRAM = "diagnose.measure.evaluation.ranks"
RESULT_SCHEMA = 1
DTYPES = ("auto", "float32", "bfloat16", "float16")


@dataclass(frozen=True)
class EvaluationOptions:
    """Paths as text, because it travels as JSON."""

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
    output: str  # the file of the result; its parts lie beside it
    resume: bool
    max_crops: tuple[int, ...] | None  # None is one pass over the questions, without a cap
    start_from: int | None = None
    auto_adjust: bool = False  # whether the batch may begin below `batch_size` and grow
    max_attempts: int = 0
    # Of the result that is resumed: the caps that it has, and what it was made with.
    done: tuple[int, ...] = ()
    settings: Mapping[str, Setting] | None = None


@dataclass(frozen=True)
class Begun:
    """What rank 0 knows before the first answer."""

    settings: Mapping[str, Setting]
    planned: tuple[int, ...]  # caps, those of an earlier attempt first; none without a cap
    ranks: int
    num_samples: int
    batch_size: int


@dataclass(frozen=True)
class EvaluationResult:
    """What evaluate.py writes. Means are None, with nothing answered."""

    schema: int
    tool_version: str
    settings: Mapping[str, Setting]
    complete: bool
    num_samples: int
    answered: int
    metrics: Mapping[str, float | None]
    reasons: Mapping[str, str]  # of the metrics that are None
    batch_size: int
    batch_size_used: int
    fallbacks: tuple[Fallback, ...]
    duration: float  # seconds, of the rank that took longest
    samples_per_second: float | None
    prompt_tokens_mean: float | None
    generated_tokens_mean: float | None


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


def cap_folder(output: Path, max_crops: int | None) -> Path:
    name = "all" if max_crops is None else f"max_crops-{max_crops}"
    return parts_folder(output) / name


def predictions_folder(output: Path) -> Path:
    return output.with_suffix(".predictions")
