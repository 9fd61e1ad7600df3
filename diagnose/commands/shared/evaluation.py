"""How does a command have questions answered? The ranks answer; what they leave is merged here."""

from __future__ import annotations

import argparse
import contextlib
import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from diagnose.commands.shared.arguments import count, count_or_none, seed
from diagnose.commands.shared.keep import Keeper, complain
from diagnose.commands.shared.progress import Progress
from diagnose.commands.shared.rank_job import Launch, add_rank_options, follow, launch_ranks
from diagnose.measure.evaluation.partial import read_steps
from diagnose.measure.ranks.job.ends import End, Outcome
from diagnose.measure.session import Refused
from diagnose.records.codec import from_dict, to_dict
from diagnose.records.evaluation import Fallback, RankStep
from diagnose.records.evaluation_options import (
    DTYPES,
    PROGRAM,
    AccuracyResult,
    Begun,
    EvaluationOptions,
    EvaluationResult,
    cap_folder,
    parts_folder,
)
from diagnose.render import store

# A batch of a large model, or loading it, is one silence; a rank that is silent for longer hangs.
TIMEOUT_SECONDS = 600.0

Result = TypeVar("Result", EvaluationResult, AccuracyResult)


def add_evaluation_options(
    parser: argparse.ArgumentParser, workload: str, tokens: int, why: str
) -> None:
    """`why` goes on from the number of tokens: the verbs ask for answers of different kinds."""
    add = parser.add_argument
    add("-m", "--model", type=Path, metavar="DIR", help="config, safetensors and tokenizer on disk")
    add("-d", "--data", type=Path, metavar="FILE", help='.jsonl of {"question", "answer"}')
    add("--workload", default=workload, help=f"how questions are asked (default: {workload})")
    add("--size", help="size of the built-in model: seed, small or tiny")
    add("-b", "--batch-size", type=count, metavar="N", help="questions at once")
    add(
        *("--max-tokens", "--max-new-tokens"),
        type=count,
        default=tokens,
        metavar="N",
        help=f"longest answer (default: {tokens}, {why}); batch-size must be given the same",
    )
    add(
        "--torch-dtype",
        choices=DTYPES,
        default="auto",
        help="dtype of the weights (default: as saved)",
    )
    add("--device", default="auto", help="auto, cpu, cuda, ... (default: auto)")
    add("--num-samples", type=count, metavar="N", help="only the first N questions")
    add(
        "--num-workers",
        type=count_or_none,
        default=0,
        metavar="N",
        help="loader processes (default: 0)",
    )
    add("--seed", type=seed, default=0, metavar="N", help="random seed of the weights (default: 0)")
    add("--resume", action="store_true", help="go on after an interruption; nothing twice")
    add_rank_options(parser, TIMEOUT_SECONDS)


def read_options(arguments: argparse.Namespace, output: Path, **more: Any) -> EvaluationOptions:
    return EvaluationOptions(
        workload=arguments.workload,
        size=arguments.size,
        model=None if arguments.model is None else str(arguments.model.resolve()),
        data=None if arguments.data is None else str(arguments.data.resolve()),
        dtype=arguments.torch_dtype,
        max_new_tokens=arguments.max_tokens,
        num_samples=arguments.num_samples,
        num_workers=arguments.num_workers,
        batch_size=arguments.batch_size,
        seed=arguments.seed,
        output=str(output.absolute()),
        resume=arguments.resume,
        **more,
    )


def load_result(kind: type[Result], output: Path) -> Result | None:
    """What an earlier attempt has left, if there was one; another file is not to be overwritten."""
    if not output.exists():
        return None
    try:
        return from_dict(kind, json.loads(output.read_text("utf-8")), "result")
    except (OSError, ValueError, RecursionError) as error:
        raise Refused(
            f"{output} is not a result of this script ({error}); choose another --output"
        ) from None


def follow_answering(arguments: argparse.Namespace, options: EvaluationOptions) -> int:
    return follow(PROGRAM, _request(arguments, options), arguments.timeout).code


def lead_answering(
    arguments: argparse.Namespace,
    options: EvaluationOptions,
    keeper: Keeper[Any],
    launch: Launch | None,
    on_begin: Callable[[Begun], object],
    on_end: Callable[[Outcome], object],
    on_answered: Callable[[int | None, list[RankStep]], object] = lambda max_crops, steps: None,
    on_fallback: Callable[[Fallback], object] = lambda fallback: None,
) -> int:
    """Rank 0, or the only process. Ctrl-C is an outcome: what was answered is on disk."""
    output, progress = Path(options.output), Progress()

    def hear(kind: str, content: Any) -> None:
        if kind == "at" and keeper.record is None:
            progress.show(content)
        elif kind == "begin":
            on_begin(from_dict(Begun, content, "begin"))
        elif kind == "progress":
            progress.count(**content)
        elif kind == "fallback":
            fallback = from_dict(Fallback, content.pop("fallback"), "fallback")
            on_fallback(fallback)
            progress.say(_describe(fallback, **content))
        elif kind == "answered":
            answered(content)

    def answered(max_crops: int | None) -> None:
        steps = read_steps(cap_folder(output, max_crops))
        on_answered(max_crops, steps)
        for each in steps:
            for fallback in each.step.fallbacks if each.rank else ():  # rank 0 said it at once
                progress.say(_describe(fallback, each.rank, max_crops))

    with keeper:
        keeper.lock(parts_folder(output), "choose another --output")
        with progress:
            try:
                run = launch or launch_ranks(1)
                outcome = run(PROGRAM, _request(arguments, options), hear, arguments.timeout)
            except KeyboardInterrupt:
                outcome = Outcome((End(0, "interrupted"),))
        if keeper.record is not None:
            on_end(outcome)
    if outcome.cause is None:
        shutil.rmtree(parts_folder(output), ignore_errors=True)
        return outcome.code
    if keeper.record is None:
        with contextlib.suppress(OSError):  # parts of an earlier attempt stay
            (parts_folder(output) / store.LOCK_NAME).unlink()
            parts_folder(output).rmdir()
    # One process needs no number.
    alone = len(outcome.ends) == 1
    sentence = outcome.sentence.removeprefix("rank 0 ") if alone else outcome.sentence
    complain("; ".join(filter(None, (sentence, keeper.kept))))
    return outcome.code


def _request(arguments: argparse.Namespace, options: EvaluationOptions) -> dict[str, Any]:
    # None stands for the accelerator that is there, else the CPU.
    device = None if arguments.device == "auto" else str(arguments.device)
    return {"device": device, "backend": arguments.backend, "evaluation": to_dict(options)}


def _describe(fallback: Fallback, rank: int, max_crops: int | None) -> str:
    where = f"rank {rank}" if max_crops is None else f"rank {rank}, max_crops {max_crops}"
    return f"WARNING {time.strftime('%Y-%m-%d %H:%M:%S')} - {where}: {fallback}"
