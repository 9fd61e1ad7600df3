"""What do the evaluation scripts share? Their options, a progress line, one sentence of error."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import NoReturn

from diagnose.commands.arguments import OneSentenceParser, count_or_none
from diagnose.commands.entry import Progress, seed, whole_and_positive
from diagnose.measure.ranks.job.ends import USAGE
from diagnose.records.evaluation_options import DTYPES, Wanted

# In a log file, where a line cannot be written over.
LOG_SECONDS = 10.0


class Parser(OneSentenceParser):
    """Every option may be written with hyphens or with underscores; see `hyphenate`."""

    def error(self, message: str) -> NoReturn:
        self.exit(USAGE, f"diagnose: {message}; see --help\n")


def add_evaluation_options(
    parser: argparse.ArgumentParser, workload: str, tokens: int, why: str
) -> None:
    """What both scripts understand, with the defaults of this one.

    `why` goes on from the number of tokens: the scripts ask for answers of different kinds.
    """
    add = parser.add_argument
    add("-m", "--model", type=Path, metavar="DIR", help="config, safetensors and tokenizer on disk")
    add("-d", "--data", type=Path, metavar="FILE", help='.jsonl of {"question", "answer"}')
    add("--workload", default=workload, help=f"how questions are asked (default: {workload})")
    add("--size", help="of the built-in model: seed, small or tiny")
    add("-b", "--batch-size", type=whole_and_positive, metavar="N", help="questions at once")
    add(
        "--max-tokens",
        "--max-new-tokens",
        type=whole_and_positive,
        default=tokens,
        metavar="N",
        help=f"longest answer (default: {tokens}, {why}); batch-size must be given the same",
    )
    add(
        "--torch-dtype",
        choices=DTYPES,
        default="auto",
        help="of the weights (default: auto, as they were saved)",
    )
    add("--device", default="auto", help="auto, cpu, cuda, ... (default: auto)")
    add("--num-samples", type=whole_and_positive, metavar="N", help="only the first N questions")
    add("--num-workers", type=count_or_none, default=0, metavar="N", help="loader processes (0)")
    add("--seed", type=seed, default=0, metavar="N", help="of random weights (0)")


def read_wanted(arguments: argparse.Namespace) -> Wanted:
    return Wanted(
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
    )


def read_device(arguments: argparse.Namespace) -> str | None:
    """None stands for the accelerator that is there, else the CPU."""
    return None if arguments.device == "auto" else str(arguments.device)


def complain(sentence: str) -> None:
    print(f"diagnose: {sentence}", file=sys.stderr, flush=True)


class AnswerLine:
    """Samples, samples per second and the time that is left: live, or now and then in a log."""

    def __init__(self) -> None:
        self._live = Progress()
        self._logs = sys.stderr is not None and not sys.stderr.isatty()
        self._logged = time.monotonic()

    def show(self, done: int, planned: int, seconds: float, what: str = "") -> None:
        rate = done / max(seconds, 1e-9)
        left = (planned - done) / rate
        line = f"{what}{done} of {planned} samples, {rate:.3g} samples/s, {left:.0f} s left"
        self._live.show(line)
        if self._logs and (done == planned or time.monotonic() - self._logged > LOG_SECONDS):
            self._logged = time.monotonic()
            print(line, file=sys.stderr, flush=True)

    def announce(self, text: str) -> None:
        """What is done before the first answer."""
        self._live.show(text)

    def say(self, text: str) -> None:
        """A line that stays."""
        self.clear()
        print(text, file=sys.stderr, flush=True)

    def clear(self) -> None:
        self._live.clear()
