"""How good are a model's answers to my questions, and how fast do they come?

    python diagnose/evaluate.py -m DIR -d FILE.jsonl -b 8 -o evaluation
    python diagnose/evaluate.py --metrics exact_match,bleu,rouge --save-predictions
    for b in 1 2 4 8 16; do python diagnose/evaluate.py -m DIR -d FILE.jsonl -b $b -o eval_$b; done

DIR holds config.json, *.safetensors and a tokenizer; each line of FILE.jsonl is like
{"question": "...", "answer": "..."}. Without them a small model of random weights is asked
questions that the project brings, to try the tool. Answers are written greedily. When memory runs
out the batch is halved, down to single samples, with the same answers; each time is told and
counted. For the largest batch that fits: python -m diagnose batch-size --workload textgen.

The result is results.json in the directory of -o, with predictions.jsonl beside it if they are to
be saved or if the evaluation ended early. Answers are written to predictions.jsonl.part as they
come, so that not even a crash loses one. Options may be written with underscores too.

Exit codes: 0 fine, 2 wrong usage, 3 something could not be measured, 130 interrupted.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from diagnose.commands.arguments import hyphenate
from diagnose.commands.evaluation_entry import Parser, add_evaluation_options, complain
from diagnose.measure.evaluation.scores import METRICS
from diagnose.measure.ranks.job.ends import COULD_NOT_MEASURE, INTERRUPTED, USAGE
from diagnose.render import store

MAX_TOKENS = 256


def build_parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="python diagnose/evaluate.py",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add_evaluation_options(parser, "textgen", MAX_TOKENS, "room for free text")
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        default=Path("evaluation"),
        metavar="DIR",
        help="(default: %(default)s)",
    )
    parser.add_argument(
        "--metrics",
        type=_metrics,
        default=("exact_match", "bleu", "rouge"),
        metavar="NAMES",
        help=f"any of {','.join(METRICS)} (default: exact_match,bleu,rouge)",
    )
    parser.add_argument("--save-predictions", action="store_true", help="keep every answer")
    return parser


def _metrics(text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(text.replace("-", "_").split(",")))
    for name in names:
        if name not in METRICS:
            raise argparse.ArgumentTypeError(f"no metric '{name}'; there are {', '.join(METRICS)}")
    return names


def main(argv: Sequence[str] | None = None) -> int:
    arguments = build_parser().parse_args(hyphenate(sys.argv[1:] if argv is None else argv))
    if os.environ.get("WORLD_SIZE", "1") != "1":
        complain("evaluate.py runs in one process; for several use diagnose/profile_accuracy.py")
        return USAGE
    # A polite kill ends like Ctrl-C: what was answered is kept.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        # Imported here: torch takes seconds, and a wrong option does not need it.
        from diagnose.commands.evaluation_run import run

        return run(arguments)
    except KeyboardInterrupt:
        complain("interrupted")
        return INTERRUPTED
    except store.StoreError as error:
        complain(str(error))
        return COULD_NOT_MEASURE
