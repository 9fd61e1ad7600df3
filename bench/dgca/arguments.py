"""What can be asked of a training run? The options of the original job and a few of our own.

Every option may be written with hyphens or with underscores: --save-steps is --save_steps.
Nothing here imports torch, so that --help and a wrong option are answered at once.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from diagnose.commands.arguments import OneSentenceParser, between, count, count_or_none, hyphenate
from diagnose.workload import WorkloadError

LATEST = ""  # the value of --resume without a path: go on in --output

EXAMPLE = """\
example:
  python -m bench.dgca.preprocess --output data --size small
  torchrun --nproc-per-node=2 bench/dgca/train.py --do-train --do-eval --do-test \\
      --preprocessed-train data/train.pt --preprocessed-eval data/dev.pt \\
      --preprocessed-test data/test.pt --fp16 --apply-prompt --mft --size small --output runs/first
"""


@dataclass(frozen=True)
class Options:
    """One field per option; None where the size or the device decides."""

    do_train: bool
    do_eval: bool
    do_test: bool
    preprocessed_train: Path | None
    preprocessed_eval: Path | None
    preprocessed_test: Path | None
    output: Path
    resume: str | None
    size: str | None
    form: str
    device: str | None
    seed: int
    fp16: bool
    apply_prompt: bool
    mft: bool
    train_batch_size: int | None
    gradient_accumulation_steps: int
    learning_rate: float
    epochs: int
    max_steps: int | None
    ddp_bucket_cap_mb: int
    ddp_static_graph: bool
    save_steps: int
    eval_steps: int
    log_steps: int
    num_workers: int
    prefetch_factor: int
    preload_data: bool


def open_train_parser(description: str, example: str) -> OneSentenceParser:
    """Of a training command, still without options."""
    return OneSentenceParser(
        prog="train",
        description=description,
        epilog=example,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )


def parse(words: Sequence[str] | None = None) -> Options:
    """The options, or exit code 2 with one sentence."""
    parser = _build_parser()
    options = Options(
        **vars(parser.parse_args(hyphenate(sys.argv[1:] if words is None else words)))
    )
    try:
        _require_what_belongs_together(options)
    except WorkloadError as error:
        parser.exit(2, f"{parser.prog}: {error}\n")
    return options


def _rate(text: str) -> float:
    return between(text, 0.0, math.inf, "a positive number")


def _require_what_belongs_together(options: Options) -> None:
    wanted = {"train": options.do_train, "eval": options.do_eval, "test": options.do_test}
    if not any(wanted.values()):
        raise WorkloadError("nothing to do; give --do-train, --do-eval or --do-test")
    for name, asked in wanted.items():
        if asked and getattr(options, f"preprocessed_{name}") is None:
            raise WorkloadError(f"--do-{name} needs --preprocessed-{name} FILE")
    if not options.do_train and options.resume is None:
        raise WorkloadError(
            "without --do-train there is no model to look at; name a checkpoint with --resume"
        )
    if options.ddp_static_graph and options.gradient_accumulation_steps > 1:
        # torch fails an internal assertion in the first window when no_sync() meets static_graph.
        raise WorkloadError(
            "--ddp-static-graph does not work with --gradient-accumulation-steps above 1 in torch; "
            "leave one of them out"
        )


def _build_parser() -> argparse.ArgumentParser:
    parser = open_train_parser(
        "Train the full DGCA model, in one process or under torchrun.", EXAMPLE
    )
    add = parser.add_argument
    for name in ("train", "eval", "test"):
        add(f"--do-{name}", action="store_true")
        add(
            f"--preprocessed-{name}",
            type=Path,
            metavar="FILE",
            help="made by bench.dgca.preprocess",
        )
    add(
        "--output", type=Path, default=Path("runs/dgca"), metavar="DIR", help="default: %(default)s"
    )
    add(
        "--resume",
        nargs="?",
        const=LATEST,
        metavar="DIR",
        help="go on from a checkpoint; without DIR from the latest in --output",
    )
    add("--size", help="seed, small or tiny; default: what suits the device")
    add(
        "--form",
        choices=("original", "optimised"),
        default="optimised",
        help="the job as it was found, or with every proven optimisation (default)",
    )
    add("--device", help="cpu, cuda or cuda:1; default: cuda where there is one")
    add("--seed", type=count_or_none, default=42, metavar="N")
    add("--fp16", action="store_true", help="half precision: float16 on CUDA, bfloat16 on the CPU")
    add("--apply-prompt", action="store_true", help="train the prompt vectors too")
    add("--mft", action="store_true", help="mask source characters and predict them as well")
    add(
        "--train-batch-size",
        type=count,
        metavar="N",
        help="rows per optimiser step and process; divided by the accumulation steps it is the "
        "micro-batch, so accumulation saves memory and leaves communication per row as it was",
    )
    add("--gradient-accumulation-steps", type=count, default=1, metavar="N")
    add("--learning-rate", type=_rate, default=5e-5, metavar="X", help="at the start; falls to 0")
    add("--epochs", type=count, default=3, metavar="N")
    add("--max-steps", type=count, metavar="N", help="optimiser steps, instead of --epochs")
    add("--ddp-bucket-cap-mb", type=count, default=100, metavar="MB")
    add("--ddp-static-graph", action="store_true")
    add("--save-steps", type=count, default=1000, metavar="N")
    add("--eval-steps", type=count, default=2000, metavar="N")
    add("--log-steps", type=count, default=10, metavar="N", help="the loss is read this rarely")
    add("--num-workers", type=count_or_none, default=0, metavar="N")
    add("--prefetch-factor", type=count, default=2, metavar="N", help="only with --num-workers")
    add("--preload-data", action="store_true", help="read the data into memory, not by mmap")
    return parser
