"""What does an evaluation leave behind? Answers, steps, fall-backs and rows; no torch here."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Answer:
    """What the model wrote for one question, and what was really used to get it."""

    index: int  # the question's place in the data
    key: str
    text: str
    generated_tokens: int
    prompt_tokens: int
    tiles: int
    prompt: str
    references: tuple[str, ...]


@dataclass(frozen=True)
class Fallback:
    """A batch that did not fit, and the size that the evaluation went on with."""

    batch: int
    next_batch: int
    asked_for: str = ""  # by the allocation that failed: "1048576 bytes"; empty if unknown

    def __str__(self) -> str:
        asked = f" (it asked for {self.asked_for} more)" if self.asked_for else ""
        going_on = "single samples" if self.next_batch == 1 else f"batches of {self.next_batch}"
        return f"out of memory with a batch of {self.batch}{asked}; going on with {going_on}"


@dataclass(frozen=True)
class Step:
    """Some questions that were answered together."""

    answers: tuple[Answer, ...]
    seconds: float  # since the step before, so that loading and failed batches count too
    fallbacks: tuple[Fallback, ...] = ()  # on the way to this step


@dataclass(frozen=True)
class RankStep:
    """A step, and the rank that took it."""

    rank: int
    step: Step


@dataclass(frozen=True)
class RankFallback:
    """A fall-back, and the rank that had to take it."""

    rank: int
    fallback: Fallback


@dataclass(frozen=True)
class AccuracyRow:
    """One max_crops; seconds are those of the rank that took longest."""

    max_crops: int
    accuracy: float  # mean over samples, VQA's rule
    std: float  # of the samples' accuracies around their mean
    num_samples: int
    batch_size_used: int  # what fitted on every rank in the end
    batch_size_by_rank: tuple[int, ...]
    duration: float  # seconds
    samples_per_second: float
    tiles_mean: float  # max_crops is only a cap
    tokens_mean: float  # of the question with its picture
    generated_tokens_mean: float
    fallbacks: int
    fallback_log: tuple[RankFallback, ...] = ()
