"""How well does a vision model answer, and how fast, for each cap of image tiles?"""

from __future__ import annotations

import argparse
import json
import shutil
from dataclasses import asdict, replace
from pathlib import Path

from diagnose import __version__
from diagnose.commands.batch_size import add_crops_options
from diagnose.commands.shared.arguments import add_number, is_first_rank
from diagnose.commands.shared.evaluation import (
    add_evaluation_options,
    follow_answering,
    lead_answering,
    load_result,
    read_options,
)
from diagnose.commands.shared.keep import Keeper
from diagnose.commands.shared.rank_job import Launch
from diagnose.measure.evaluation.accuracy import judge, sort_answers, summarize
from diagnose.measure.ranks.job.ends import Outcome
from diagnose.measure.session import Refused
from diagnose.records.codec import dumps
from diagnose.records.evaluation import AccuracyRow, RankStep
from diagnose.records.evaluation_options import (
    RESULT_SCHEMA,
    AccuracyResult,
    Begun,
    cap_folder,
    predictions_folder,
)
from diagnose.records.exit_codes import FINE
from diagnose.render import store

MANUAL = """\
  python -m diagnose profile-accuracy --workload molmo --max-crops-list 12 13 --batch-size 64
  torchrun --nproc-per-node=8 -m diagnose profile-accuracy -m DIR -d FILE.jsonl \\
      --start-from-max-crops 12 --output vqa.json

For each max_crops all questions are answered, greedily, and the result file gets a row: accuracy,
its spread, the tiles and tokens that were really used (max_crops is only a cap), the batch size
and the seconds. Under torchrun every rank answers its share, no question twice. The batch begins
at --batch-size times a factor for max_crops and grows towards --batch-size as long as it fits;
--no-auto-adjust-batch-size begins and stays there. When memory runs out the batch is halved, down
to single samples, with the same answers; each time is reported and counted.

FILE.json is whole at every moment and has every max_crops that is done; FILE.parts has what the
ranks have answered besides, and --resume goes on from there, with any number of ranks;
FILE.predictions has the answers."""
MAX_TOKENS = 16
MAX_ATTEMPTS = 5


def add_options(parser: argparse.ArgumentParser) -> None:
    add_evaluation_options(parser, "vqa", MAX_TOKENS, "as batch-size: a short answer")
    add_crops_options(parser)
    attempts = "how often a larger batch is tried for a max_crops"
    add_number(parser, "--max-attempts", attempts, default=MAX_ATTEMPTS)
    parser.add_argument(
        *("-o", "--output"),
        type=_json_file,
        default=Path("profile_accuracy.json"),
        metavar="FILE",
        help="file of the result (default: %(default)s)",
    )


def _json_file(text: str) -> Path:
    path = Path(text)
    if path.suffix != ".json":
        raise argparse.ArgumentTypeError(f"'{text}' does not end in .json")
    return path


def run(arguments: argparse.Namespace, launch: Launch | None = None) -> int:
    output: Path = arguments.output
    options = read_options(
        arguments,
        output,
        max_crops=tuple(arguments.max_crops_list),
        start_from=arguments.start_from_max_crops,
        auto_adjust=arguments.auto_adjust,
        max_attempts=arguments.max_attempts,
    )
    if not is_first_rank():
        return follow_answering(arguments, options)
    earlier = load_result(AccuracyResult, output)
    rows = () if earlier is None else earlier.summary
    if earlier is not None:
        if not arguments.resume:
            raise Refused(
                f"{output} already holds {len(rows)} of {len(earlier.planned)} max_crops; "
                "go on with --resume, or choose another --output"
            )
        done = tuple(row.max_crops for row in rows)
        options = replace(options, done=done, settings=earlier.settings)
    keeper = Keeper[AccuracyResult](
        lambda result: store.write_atomically(output, dumps(result)),
        lambda result: (
            f"{len(result.summary)} of {len(result.planned)} max_crops are in {output}; "
            "go on with --resume"
        ),
    )

    def begin(begun: Begun) -> None:
        head = (RESULT_SCHEMA, __version__, begun.settings, begun.planned, begun.ranks)
        keeper.save(AccuracyResult(*head, summary=rows))

    def add_row(max_crops: int | None, steps: list[RankStep]) -> None:
        assert keeper.record is not None
        assert max_crops is not None
        _keep_predictions(output, max_crops, steps)
        row = summarize(max_crops, steps)
        keeper.save(replace(keeper.record, summary=(*keeper.record.summary, row)))
        shutil.rmtree(cap_folder(output, max_crops), ignore_errors=True)

    def end(outcome: Outcome) -> None:
        assert keeper.record is not None
        keeper.save(replace(keeper.record, complete=outcome.cause is None))

    code = lead_answering(arguments, options, keeper, launch, begin, end, add_row)
    if code == FINE and keeper.record is not None:
        for row in keeper.record.summary:
            print(_describe(row))
        print(f"result: {output}")
    return code


def _keep_predictions(output: Path, max_crops: int, steps: list[RankStep]) -> None:
    """Every answer on its line, in the order of the questions."""
    lines = [{**asdict(each), "accuracy": judge(each)} for each in sort_answers(steps)]
    text = "".join(json.dumps(each, ensure_ascii=False) + "\n" for each in lines)
    path = predictions_folder(output) / f"max_crops-{max_crops}.jsonl"
    store.write_atomically(path, text.encode())


def _describe(row: AccuracyRow) -> str:
    fallbacks = f", {row.fallbacks} fall-backs" if row.fallbacks else ""
    return (
        f"max_crops {row.max_crops}: accuracy {row.accuracy:.4f} (std {row.std:.4f}) of "
        f"{row.num_samples} samples, {row.tiles_mean:.1f} tiles and {row.tokens_mean:.0f} tokens "
        f"each, batch {row.batch_size_used}, {row.duration:.1f} s{fallbacks}"
    )
