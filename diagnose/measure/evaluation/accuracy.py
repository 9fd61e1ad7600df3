"""How well does a model answer, and what did it take? One row for each cap of image tiles."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING

from diagnose.measure.evaluation.scores import vqa_accuracy
from diagnose.records.evaluation import AccuracyRow, Answer, RankFallback, RankStep, Step

if TYPE_CHECKING:
    from diagnose.workload import Question


class Incomplete(Exception):
    """Answers are missing, so there is no accuracy; the message says how many."""


def sort_answers(steps: Sequence[RankStep], questions: Sequence[Question]) -> list[Answer]:
    """In the order of the questions; Incomplete unless every question has its answer."""
    answers = sorted((a for each in steps for a in each.step.answers), key=lambda a: a.index)
    if [each.index for each in answers] != list(range(len(questions))):
        missing = len(questions) - len(answers)
        raise Incomplete(f"{missing} of {len(questions)} answers are missing; use --resume")
    return answers


def judge(answer: Answer, question: Question) -> float:
    return vqa_accuracy(answer.text, question.references)


def summarise(
    max_crops: int, steps: Sequence[RankStep], questions: Sequence[Question]
) -> AccuracyRow:
    answers = sort_answers(steps, questions)
    accuracies = list(map(judge, answers, questions))
    by_rank: dict[int, list[Step]] = {}
    for each in steps:
        by_rank.setdefault(each.rank, []).append(each.step)
    sizes = tuple(find_batch_size(by_rank[rank]) for rank in sorted(by_rank))
    duration = max(sum(step.seconds for step in taken) for taken in by_rank.values())
    log = [RankFallback(each.rank, one) for each in steps for one in each.step.fallbacks]
    return AccuracyRow(
        max_crops=max_crops,
        accuracy=statistics.fmean(accuracies),
        std=statistics.pstdev(accuracies),
        num_samples=len(answers),
        batch_size_used=min(sizes),
        batch_size_by_rank=sizes,
        duration=duration,
        samples_per_second=len(answers) / duration,
        tiles_mean=statistics.fmean(each.tiles for each in answers),
        tokens_mean=statistics.fmean(each.prompt_tokens for each in answers),
        generated_tokens_mean=statistics.fmean(each.generated_tokens for each in answers),
        fallbacks=len(log),
        fallback_log=tuple(log),
    )


def find_batch_size(steps: Sequence[Step]) -> int:
    """The most samples that were answered together since memory was last short."""
    most = 0
    for step in steps:
        most = len(step.answers) if step.fallbacks else max(most, len(step.answers))
    return most
