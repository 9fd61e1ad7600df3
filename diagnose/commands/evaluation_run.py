"""How is one evaluation run? Asked, kept as it comes, scored, told; the work of evaluate.py."""

from __future__ import annotations

import argparse
import json
import os
import statistics
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TextIO

import torch

from diagnose import __version__
from diagnose.commands.evaluation_entry import AnswerLine, complain, read_device, read_wanted
from diagnose.measure.evaluation.accuracy import find_batch_size
from diagnose.measure.evaluation.answering import NoRoom, answer_questions
from diagnose.measure.evaluation.fallback import Fitting
from diagnose.measure.evaluation.opening import (
    Evaluation,
    in_one_line,
    open_evaluation,
    open_fitting,
)
from diagnose.measure.evaluation.scores import Judged, score
from diagnose.measure.machine.device import Device, DeviceError, open_device
from diagnose.measure.machine.out_of_memory import is_out_of_memory
from diagnose.measure.ranks.job.ends import COULD_NOT_MEASURE, FINE, INTERRUPTED, USAGE
from diagnose.records.codec import dumps
from diagnose.records.evaluation import Fallback, Step
from diagnose.records.header import Setting
from diagnose.render import store
from diagnose.workload import WorkloadError

SCHEMA = 1
RESULTS_NAME = "results.json"
PREDICTIONS_NAME = "predictions.jsonl"
PART_NAME = "predictions.jsonl.part"


@dataclass(frozen=True)
class EvaluationResult:
    """What evaluate.py writes. Means are None, with nothing answered."""

    schema: int
    tool_version: str
    settings: dict[str, Setting]
    complete: bool
    num_samples: int
    answered: int
    metrics: dict[str, float | None]
    reasons: dict[str, str]  # of the metrics that are None
    batch_size: int
    batch_size_used: int
    fallbacks: tuple[Fallback, ...]
    duration: float  # seconds
    samples_per_second: float | None
    prompt_tokens_mean: float | None
    generated_tokens_mean: float | None


@dataclass
class _Answered:
    """All steps so far, in memory for the scores and on disk in case of a crash."""

    evaluation: Evaluation
    fitting: Fitting
    file: TextIO
    steps: list[Step] = field(default_factory=list)

    def add(self, step: Step) -> None:
        self.steps.append(step)
        for answer in step.answers:
            question = self.evaluation.questions[answer.index]
            line = {**asdict(answer), "prompt": question.prompt, "references": question.references}
            self.file.write(json.dumps(line, ensure_ascii=False) + "\n")
        self.file.flush()


def run(arguments: argparse.Namespace) -> int:
    """The exit code; whatever can be wrong is told in one sentence."""
    line = AnswerLine()
    line.announce("loading of the model")
    try:
        device = open_device(read_device(arguments))
        evaluation = open_evaluation(read_wanted(arguments), device)
    except (WorkloadError, DeviceError) as error:
        complain(in_one_line(error))
        return USAGE
    except Exception as error:
        if not is_out_of_memory(error, torch.OutOfMemoryError):
            raise
        what = in_one_line(error) or "before the model was loaded"
        complain(f"out of memory: {what}; use a smaller --torch-dtype or more memory")
        return COULD_NOT_MEASURE
    finally:
        line.clear()
    return _run(evaluation, device, line, arguments)


def _run(
    evaluation: Evaluation, device: Device, line: AnswerLine, arguments: argparse.Namespace
) -> int:
    output: Path = arguments.output
    size = evaluation.batch_size
    fitting = open_fitting(device, size, lambda fallback: line.say(str(fallback)))
    with _open_part(output) as file:
        answered = _Answered(evaluation, fitting, file)
        reason = _answer_all(answered, line, arguments.num_workers)
    code = FINE if reason is None else reason[0]
    result = _summarise(answered, arguments.metrics, complete=code == FINE)
    store.write_atomically(output / RESULTS_NAME, dumps(result))
    if code != FINE or arguments.save_predictions:
        os.replace(output / PART_NAME, output / PREDICTIONS_NAME)
    else:
        (output / PART_NAME).unlink()
    if reason is not None:
        kept = f"{result.answered} of {result.num_samples} answers are in {output}"
        complain(f"{reason[1]}; {kept}")
    if result.answered:
        print(_describe(result))
        print(f"result: {output / RESULTS_NAME}")
    return code


@contextmanager
def _open_part(output: Path) -> Iterator[TextIO]:
    path = output / PART_NAME
    try:
        output.mkdir(parents=True, exist_ok=True)
        file = path.open("w", encoding="utf-8")
    except OSError as error:
        raise store.StoreError(f"{path} was not written: {error.strerror or error}") from error
    with file:
        yield file


def _answer_all(answered: _Answered, line: AnswerLine, workers: int) -> tuple[int, str] | None:
    """Until the end, or the exit code and the reason why it ended early."""
    evaluation = answered.evaluation
    questions = dict(enumerate(evaluation.questions))
    done, seconds = 0, 0.0
    try:
        for step in answer_questions(
            evaluation.generator, questions, evaluation.decoding, answered.fitting, workers=workers
        ):
            answered.add(step)
            done, seconds = done + len(step.answers), seconds + step.seconds
            line.show(done, len(questions), seconds)
    except KeyboardInterrupt:
        return INTERRUPTED, "interrupted"
    except NoRoom as error:
        advice = "use fewer --max-tokens, a smaller --torch-dtype or a device with more memory"
        return COULD_NOT_MEASURE, f"out of memory: {error}; {advice}"
    except WorkloadError as error:
        return USAGE, in_one_line(error)
    except OSError as error:
        return COULD_NOT_MEASURE, f"answers cannot be written: {error.strerror or error}"
    finally:
        line.clear()
    return None


def _summarise(answered: _Answered, metrics: Sequence[str], *, complete: bool) -> EvaluationResult:
    evaluation = answered.evaluation
    answers = [answer for step in answered.steps for answer in step.answers]
    references = [evaluation.questions[answer.index].references for answer in answers]
    judged = [Judged(a.text, known) for a, known in zip(answers, references, strict=True)]
    scores = {name: each for metric in metrics for name, each in score(metric, judged).items()}
    seconds = sum(step.seconds for step in answered.steps)
    return EvaluationResult(
        schema=SCHEMA,
        tool_version=__version__,
        settings=evaluation.settings,
        complete=complete,
        num_samples=len(evaluation.questions),
        answered=len(answers),
        metrics={name: each.value for name, each in scores.items()},
        reasons={name: each.reason for name, each in scores.items() if each.value is None},
        batch_size=evaluation.batch_size,
        batch_size_used=find_batch_size(answered.steps),
        # Not those of the steps: where no step followed, they led to nothing and count too.
        fallbacks=tuple(answered.fitting.fallbacks),
        duration=seconds,
        samples_per_second=len(answers) / seconds if answers else None,
        prompt_tokens_mean=_mean([each.prompt_tokens for each in answers]),
        generated_tokens_mean=_mean([each.generated_tokens for each in answers]),
    )


def _mean(values: Sequence[int]) -> float | None:
    return statistics.fmean(values) if values else None


def _describe(result: EvaluationResult) -> str:
    shown = [
        f"{name} {'not defined' if value is None else format(value, '.4f')}"
        for name, value in result.metrics.items()
    ]
    return (
        f"{', '.join(shown)} of {result.answered} samples; {result.samples_per_second:.3g} "
        f"samples/s at batch {result.batch_size_used}, {len(result.fallbacks)} fall-backs"
    )
