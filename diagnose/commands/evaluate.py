"""How good are a model's answers to my questions, and how fast do they come?"""

from __future__ import annotations

import argparse
import contextlib
import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

from diagnose.commands.shared.arguments import is_first_rank
from diagnose.commands.shared.evaluation import (
    add_evaluation_options,
    follow_answering,
    lead_answering,
    load_result,
    read_options,
)
from diagnose.commands.shared.keep import Keeper
from diagnose.commands.shared.rank_job import Launch
from diagnose.measure.evaluation.accuracy import score_all, sort_answers
from diagnose.measure.evaluation.partial import read_steps
from diagnose.measure.evaluation.scores import METRICS
from diagnose.measure.ranks.job.ends import Outcome
from diagnose.measure.session import Refused
from diagnose.records.codec import dumps
from diagnose.records.evaluation import Answer, Fallback
from diagnose.records.evaluation_options import Begun, EvaluationResult, cap_folder
from diagnose.render import store

MANUAL = """\
  python -m diagnose evaluate -m DIR -d FILE.jsonl -b 8 -o evaluation
  python -m diagnose evaluate --metrics exact_match,bleu,rouge --save-predictions
  for b in 1 2 4 8 16; do python -m diagnose evaluate -m DIR -d FILE.jsonl -b $b -o eval_$b; done

DIR holds config.json, *.safetensors and a tokenizer; each line of FILE.jsonl is like
{"question": "...", "answer": "..."}. Without them a small model of random weights is asked
questions that the project brings, to try the tool. Answers are written greedily. When memory runs
out the batch is halved, down to single samples, with the same answers; each time is reported and
counted. For the largest batch that fits: python -m diagnose batch-size --workload textgen.

The result is results.json in the directory of -o, with predictions.jsonl beside it if they are to
be saved or if the evaluation ended early. Answers are written to results.parts as they come, so
that not even a crash loses one, and --resume goes on from there. Under torchrun every rank answers
its share."""
MAX_TOKENS = 256
RESULTS_NAME = "results.json"
PREDICTIONS_NAME = "predictions.jsonl"


def add_options(parser: argparse.ArgumentParser) -> None:
    add_evaluation_options(parser, "textgen", MAX_TOKENS, "room for free text")
    add = parser.add_argument
    add(
        *("-o", "--output"),
        type=Path,
        default=Path("evaluation"),
        metavar="DIR",
        help="folder of the result (default: %(default)s)",
    )
    add(
        "--metrics",
        type=_metrics,
        default=("exact_match", "bleu", "rouge"),
        metavar="NAMES",
        help=f"any of {','.join(METRICS)} (default: exact_match,bleu,rouge)",
    )
    add("--save-predictions", action="store_true", help="keep every answer")


def _metrics(text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(text.replace("-", "_").split(",")))
    for name in names:
        if name not in METRICS:
            raise argparse.ArgumentTypeError(f"no metric '{name}'; there are {', '.join(METRICS)}")
    return names


def run(arguments: argparse.Namespace, launch: Launch | None = None) -> int:
    """One pass over all questions: the ranks of profile-accuracy, without a cap of tiles."""
    directory: Path = arguments.output
    output = directory / RESULTS_NAME
    options = read_options(arguments, output, max_crops=None)
    if not is_first_rank():
        return follow_answering(arguments, options)
    if arguments.resume and (earlier := load_result(EvaluationResult, output)) is not None:
        if earlier.complete:
            raise Refused(f"{output} is complete; leave out --resume to answer everything again")
        options = replace(options, settings=earlier.settings)
    is_new = not directory.exists()
    begun: list[Begun] = []
    fallbacks: list[Fallback] = []
    keeper = Keeper[EvaluationResult](
        lambda result: store.write_atomically(output, dumps(result)),
        lambda result: f"{result.answered} of {result.num_samples} answers are in {directory}",
    )

    def begin(seen: Begun) -> None:
        # Written before the first answer: it is what a resumption is held against.
        begun.append(seen)
        keeper.save(score_all(seen, (), arguments.metrics, ()))

    def end(outcome: Outcome) -> None:
        steps = read_steps(cap_folder(output, None))
        keeper.save(score_all(begun[0], steps, arguments.metrics, fallbacks))
        are_kept = outcome.cause is not None or arguments.save_predictions
        _keep_predictions(directory / PREDICTIONS_NAME, sort_answers(steps) if are_kept else ())

    code = lead_answering(
        arguments, options, keeper, launch, begin, end, on_fallback=fallbacks.append
    )
    if keeper.record is None and is_new:
        with contextlib.suppress(OSError):
            directory.rmdir()
    elif keeper.record is not None and keeper.record.answered:
        print(_describe(keeper.record))
        print(f"result: {output}")
    return code


def _keep_predictions(path: Path, answers: Sequence[Answer]) -> None:
    """A line for every answer; nothing, rather than those of an earlier attempt."""
    if not answers:
        path.unlink(missing_ok=True)
        return
    lines = (json.dumps(asdict(each), ensure_ascii=False) + "\n" for each in answers)
    store.write_atomically(path, "".join(lines).encode())


def _describe(result: EvaluationResult) -> str:
    shown = [
        f"{name} {'not defined' if value is None else format(value, '.4f')}"
        for name, value in result.metrics.items()
    ]
    return (
        f"{', '.join(shown)} of {result.answered} samples; {result.samples_per_second:.3g} "
        f"samples/s on {result.settings['device']} at batch {result.batch_size_used}, "
        f"{len(result.fallbacks)} fall-backs"
    )
