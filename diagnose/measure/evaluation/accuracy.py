"""How well does a model answer, and what did it take? No torch here: all from the ranks' steps."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence

from diagnose import __version__
from diagnose.measure.evaluation.scores import Judged, score, vqa_accuracy
from diagnose.records.evaluation import (
    AccuracyRow,
    Answer,
    Fallback,
    RankFallback,
    RankStep,
    Step,
)
from diagnose.records.evaluation_options import RESULT_SCHEMA, Begun, EvaluationResult


def sort_answers(steps: Sequence[RankStep]) -> list[Answer]:
    """In the order of the questions."""
    return sorted((a for each in steps for a in each.step.answers), key=lambda a: a.index)


def judge(answer: Answer) -> float:
    return vqa_accuracy(answer.text, answer.references)


def summarize(max_crops: int, steps: Sequence[RankStep]) -> AccuracyRow:
    """The row of one cap, all of whose questions were answered."""
    answers, sizes, duration = sort_answers(steps), _batch_sizes(steps), _longest(steps)
    accuracies = list(map(judge, answers))
    log = tuple(RankFallback(each.rank, one) for each in steps for one in each.step.fallbacks)
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
        fallback_log=log,
    )


def score_all(
    begun: Begun, steps: Sequence[RankStep], metrics: Sequence[str], told: Sequence[Fallback]
) -> EvaluationResult:
    """The scores of whatever was answered. Fall-backs were `told` as they came: where no step
    followed, they led to nothing and count too.
    """
    answers, duration = sort_answers(steps), _longest(steps)
    judged = [Judged(each.text, each.references) for each in answers]
    scores = {name: each for metric in metrics for name, each in score(metric, judged).items()}
    fallbacks = [one for each in steps for one in each.step.fallbacks]
    return EvaluationResult(
        schema=RESULT_SCHEMA,
        tool_version=__version__,
        settings=begun.settings,
        complete=len(answers) == begun.num_samples,
        num_samples=begun.num_samples,
        answered=len(answers),
        metrics={name: each.value for name, each in scores.items()},
        reasons={name: each.reason for name, each in scores.items() if each.value is None},
        batch_size=begun.batch_size,
        batch_size_used=min(_batch_sizes(steps), default=0),
        fallbacks=(*fallbacks, *(each for each in told if each not in fallbacks)),
        duration=duration,
        samples_per_second=len(answers) / duration if answers else None,
        prompt_tokens_mean=_mean(each.prompt_tokens for each in answers),
        generated_tokens_mean=_mean(each.generated_tokens for each in answers),
    )


def _mean(values: Iterable[int]) -> float | None:
    known = list(values)
    return statistics.fmean(known) if known else None


def _by_rank(steps: Sequence[RankStep]) -> dict[int, list[Step]]:
    found: dict[int, list[Step]] = {}
    for each in sorted(steps, key=lambda each: each.rank):
        found.setdefault(each.rank, []).append(each.step)
    return found


def _longest(steps: Sequence[RankStep]) -> float:
    """Seconds of the rank that took longest."""
    seconds = [sum(step.seconds for step in taken) for taken in _by_rank(steps).values()]
    return max(seconds, default=0.0)


def _batch_sizes(steps: Sequence[RankStep]) -> tuple[int, ...]:
    return tuple(find_batch_size(taken) for taken in _by_rank(steps).values())


def find_batch_size(steps: Sequence[Step]) -> int:
    """The most samples that were answered together since memory was last short."""
    most = 0
    for step in steps:
        most = len(step.answers) if step.fallbacks else max(most, len(step.answers))
    return most
