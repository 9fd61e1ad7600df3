"""How well does a vision model answer, and how fast, for each cap of image tiles?

    python diagnose/profile_accuracy.py --max-crops-list 12 13 --batch-size 64
    torchrun --nproc-per-node=8 diagnose/profile_accuracy.py -m DIR -d FILE.jsonl \\
        --start-from-max-crops 12 --output vqa.json

For each max_crops all questions are answered, greedily, and the result file gets a row: accuracy,
its spread, the tiles and tokens that were really used (max_crops is only a cap), the batch size
and the seconds. Under torchrun every rank answers its share, no question twice. The batch begins
at --batch-size times a factor for max_crops and grows towards --batch-size as long as it fits;
--no-auto-adjust-batch-size begins and stays there. When memory runs out the batch is halved, down
to single samples, with the same answers; each time is told and counted.

FILE.json is whole at every moment and has every max_crops that is done; FILE.parts has what the
ranks have answered besides, and --resume goes on from there, with any number of ranks;
FILE.predictions has the answers. Options may be written with underscores too.

Exit codes: 0 fine, 2 wrong usage, 3 something could not be measured, 130 interrupted. torchrun
turns every one that is not 0 into its own 1 and adds a summary; the sentence above that summary,
which begins with "diagnose:", is the one to read.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import os
import shutil
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from diagnose.commands.arguments import hyphenate
from diagnose.commands.entry import positive, whole_and_positive
from diagnose.commands.evaluation_entry import (
    AnswerLine,
    Parser,
    add_evaluation_options,
    complain,
    read_device,
    read_wanted,
)
from diagnose.measure.batch_size.plan import MAX_CROPS
from diagnose.measure.ranks.job.ends import COULD_NOT_MEASURE, INTERRUPTED, USAGE, Outcome
from diagnose.measure.ranks.job.rendezvous import Refusal, read_place
from diagnose.measure.ranks.job.supervise import OnLine, run_locally, supervise
from diagnose.records.codec import dumps, from_dict, to_dict
from diagnose.records.evaluation import AccuracyRow
from diagnose.records.evaluation_options import (
    ACCURACY_PROGRAM,
    AccuracyResult,
    WantedAccuracy,
    cap_folder,
    parts_folder,
)
from diagnose.render import store

MAX_TOKENS = 16
MAX_ATTEMPTS = 5
# A batch of a large model, or loading it, is one silence; a rank that is silent for longer hangs.
TIMEOUT_SECONDS = 600.0

Launch = Callable[[str, Mapping[str, Any], OnLine, float], Outcome]


def build_parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="python diagnose/profile_accuracy.py",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add_evaluation_options(parser, "vqa", MAX_TOKENS, "as batch-size: a short answer")
    add = parser.add_argument
    add(
        "--max-crops-list",
        type=whole_and_positive,
        nargs="+",
        default=[],
        metavar="N",
        help=f"caps of image tiles (default: {' '.join(map(str, MAX_CROPS))})",
    )
    add("--start-from-max-crops", type=whole_and_positive, metavar="N", help="leave out smaller")
    add(
        "--auto-adjust-batch-size",
        dest="auto_adjust",
        action="store_true",
        default=True,
        help="begin below --batch-size where tiles are many, grow while it fits (default)",
    )
    add(
        "--no-auto-adjust-batch-size",
        dest="auto_adjust",
        action="store_false",
        help="begin at --batch-size and never grow",
    )
    add(
        "--max-attempts",
        type=whole_and_positive,
        default=MAX_ATTEMPTS,
        metavar="N",
        help=f"how often a larger batch is tried for a max_crops (default: {MAX_ATTEMPTS})",
    )
    add(
        "-o",
        "--output",
        type=_json_file,
        default=Path("profile_accuracy.json"),
        metavar="FILE",
        help="(default: %(default)s)",
    )
    add("--resume", action="store_true", help="go on after an interruption; nothing twice")
    add("--backend", help="gloo, nccl, ... (default: the device's own)")
    add(
        "--timeout",
        type=positive,
        default=TIMEOUT_SECONDS,
        metavar="SECONDS",
        help=f"longest silence of a rank (default: {TIMEOUT_SECONDS:g})",
    )
    return parser


def _json_file(text: str) -> Path:
    path = Path(text)
    if path.suffix != ".json":
        raise argparse.ArgumentTypeError(f"'{text}' does not end in .json")
    return path


class _Keeper:
    """The result of the job: it grows by a max_crops at a time, and every state is on disk."""

    def __init__(self, output: Path) -> None:
        self._output = output
        self._line = AnswerLine()
        self.result: AccuracyResult | None = None

    @property
    def kept(self) -> str:
        """What goes on from "...; "."""
        if self.result is None:
            return "nothing was answered yet"
        count, planned = len(self.result.summary), len(self.result.planned)
        return f"{count} of {planned} max_crops are in {self._output}; go on with --resume"

    def hear(self, kind: str, content: Any) -> None:
        if kind == "at" and self.result is None:
            self._line.announce(content)
        elif kind == "begin":
            self.save(from_dict(AccuracyResult, content, "result"))
        elif kind == "progress":
            self._show(**content)
        elif kind == "fallback":
            self._line.say(content)
        elif kind == "row":
            assert self.result is not None
            row = from_dict(AccuracyRow, content, "row")
            self.save(replace(self.result, summary=(*self.result.summary, row)))
            shutil.rmtree(cap_folder(self._output, row.max_crops), ignore_errors=True)

    def _show(self, max_crops: int, done: int, planned: int, seconds: float, ranks: int) -> None:
        who = "" if ranks == 1 else f", rank 0 of {ranks}"
        self._line.show(done, planned, seconds, f"max_crops {max_crops}{who}: ")

    def save(self, result: AccuracyResult) -> None:
        self.result = result
        store.write_atomically(self._output, dumps(result))

    def close(self) -> None:
        self._line.clear()


def lead(arguments: argparse.Namespace, launch: Launch) -> int:
    """Rank 0, or the only process: evaluate, keep, tell."""
    output: Path = arguments.output
    keeper = _Keeper(output)
    try:
        with store.label_lock(parts_folder(output), "choose another --output"):
            outcome = launch(ACCURACY_PROGRAM, _request(arguments), keeper.hear, arguments.timeout)
        if keeper.result is not None and outcome.cause is None:
            keeper.save(replace(keeper.result, complete=True))
    except KeyboardInterrupt:
        complain(f"interrupted; {keeper.kept}")
        return INTERRUPTED
    except store.StoreError:
        # The disk is the reader's to repair; what was measured must not be lost with it.
        if keeper.result is not None and keeper.result.summary:
            print(dumps(keeper.result).decode(), file=sys.stderr)
        raise
    finally:
        keeper.close()
    if keeper.result is None:
        with contextlib.suppress(OSError):  # parts of an earlier attempt stay
            (parts_folder(output) / store.LOCK_NAME).unlink()
            parts_folder(output).rmdir()
        complain(outcome.sentence)
    elif outcome.cause is not None:
        complain(f"{outcome.sentence}; {keeper.kept}")
    else:
        shutil.rmtree(parts_folder(output), ignore_errors=True)
        for row in keeper.result.summary:
            print(_describe(row))
        print(f"result: {output}")
    return outcome.code


def follow(arguments: argparse.Namespace) -> int:
    """Every other rank: the same steps, without a word unless rank 0 is gone."""
    outcome = supervise(ACCURACY_PROGRAM, _request(arguments), lambda *_: None, arguments.timeout)
    if outcome.cause is not None and outcome.teller == read_place().rank:
        complain(outcome.sentence)
    return outcome.code


def _request(arguments: argparse.Namespace) -> dict[str, Any]:
    wanted = WantedAccuracy(
        evaluation=read_wanted(arguments),
        max_crops=tuple(arguments.max_crops_list),
        start_from=arguments.start_from_max_crops,
        auto_adjust=arguments.auto_adjust,
        max_attempts=arguments.max_attempts,
        output=str(arguments.output.absolute()),
        resume=arguments.resume,
    )
    place = {"device": read_device(arguments), "backend": arguments.backend}
    # As JSON, because that is how it reaches the ranks.
    return {**place, "accuracy": to_dict(wanted)}


def _describe(row: AccuracyRow) -> str:
    fallbacks = f", {row.fallbacks} fall-backs" if row.fallbacks else ""
    return (
        f"max_crops {row.max_crops}: accuracy {row.accuracy:.4f} (std {row.std:.4f}) of "
        f"{row.num_samples} samples, {row.tiles_mean:.1f} tiles and {row.tokens_mean:.0f} tokens "
        f"each, batch {row.batch_size_used}, {row.duration:.1f} s{fallbacks}"
    )


def main(argv: Sequence[str] | None = None) -> int:
    speaks = os.environ.get("RANK", "0") == "0"
    words = hyphenate(sys.argv[1:] if argv is None else argv)
    # torchrun starts this once for every rank, and one complaint about an option is enough.
    with (
        open(os.devnull, "w") as nowhere,
        contextlib.redirect_stderr(sys.stderr if speaks else nowhere),
    ):
        arguments = build_parser().parse_args(words)
    try:
        if "RANK" not in os.environ:
            # A polite kill ends like Ctrl-C: what was answered is kept.
            signal.signal(signal.SIGTERM, signal.default_int_handler)
            return lead(arguments, functools.partial(run_locally, 1))
        return lead(arguments, supervise) if read_place().rank == 0 else follow(arguments)
    except Refusal as error:
        complain(str(error))
        return USAGE
    except store.StoreError as error:
        complain(str(error))
        return COULD_NOT_MEASURE
