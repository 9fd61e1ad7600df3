"""What can be asked of a training run? The options of the original job and a few of our own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.train_command import flag, option, parse_options, positive
from diagnose.commands.shared.arguments import count, count_or_none
from diagnose.workload import WorkloadError

LATEST = ""  # the value of --resume without a path: go on in --output

EXAMPLE = """\
example:
  python -m bench.dgca.preprocess --output data --size small
  torchrun --nproc-per-node=2 bench/dgca/train.py --do-train --do-eval --do-test \\
      --preprocessed-train data/train.pt --preprocessed-eval data/dev.pt \\
      --preprocessed-test data/test.pt --fp16 --apply-prompt --mft --size small --output runs/first
"""
_MADE = "made by bench.dgca.preprocess"


@dataclass(frozen=True)
class Options:
    """None where the size or the device decides."""

    do_train: bool = flag()
    do_eval: bool = flag()
    do_test: bool = flag()
    preprocessed_train: Path | None = option(Path, _MADE, metavar="FILE")
    preprocessed_eval: Path | None = option(Path, _MADE, metavar="FILE")
    preprocessed_test: Path | None = option(Path, _MADE, metavar="FILE")
    output: Path = option(Path, "(default: %(default)s)", Path("runs/dgca"), metavar="DIR")
    resume: str | None = option(
        text="go on from a checkpoint; without DIR from the latest in --output",
        nargs="?",
        const=LATEST,
        metavar="DIR",
    )
    size: str | None = option(text="seed, small or tiny; default: what suits the device")
    form: str = option(
        text="the job as it was found, or with every proven optimisation (default)",
        default="optimised",
        choices=("original", "optimised"),
    )
    device: str | None = option(text="cpu, cuda or cuda:1; default: cuda where there is one")
    seed: int = option(count_or_none, default=42, metavar="N")
    fp16: bool = flag("half precision: float16 on CUDA, bfloat16 on the CPU")
    apply_prompt: bool = flag("train the prompt vectors too")
    mft: bool = flag("mask source characters and predict them as well")
    train_batch_size: int | None = option(
        count,
        "rows per optimiser step and process; divided by the accumulation steps it is the "
        "micro-batch, so accumulation saves memory and leaves communication per row as it was",
        metavar="N",
    )
    gradient_accumulation_steps: int = option(count, default=1, metavar="N")
    learning_rate: float = option(positive, "at the start; falls to 0", 5e-5, metavar="X")
    epochs: int = option(count, default=3, metavar="N")
    max_steps: int | None = option(count, "optimiser steps, instead of --epochs", metavar="N")
    ddp_bucket_cap_mb: int = option(count, default=100, metavar="MB")
    ddp_static_graph: bool = flag()
    save_steps: int = option(count, default=1000, metavar="N")
    eval_steps: int = option(count, default=2000, metavar="N")
    log_steps: int = option(count, "the loss is read this rarely", 10, metavar="N")
    num_workers: int = option(count_or_none, default=0, metavar="N")
    prefetch_factor: int = option(count, "only with --num-workers", 2, metavar="N")
    preload_data: bool = flag("read the data into memory, not by mmap")


def parse(words: Sequence[str] | None = None) -> Options:
    return parse_options(
        Options,
        words,
        _require_what_belongs_together,
        prog="train",
        description="Train the full DGCA model, in one process or under torchrun.",
        example=EXAMPLE,
    )


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
