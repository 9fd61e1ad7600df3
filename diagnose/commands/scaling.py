"""Why are several ranks slower than one, and which option of DDP gives it back?"""

from __future__ import annotations

import argparse
from typing import Any

from diagnose.commands.shared.arguments import add_number, seed
from diagnose.commands.shared.keep import print_answer, with_label
from diagnose.commands.shared.rank_job import add_report_rank_options, find_place, follow, lead
from diagnose.measure.ranks.growth import add_line, begin_scaling
from diagnose.measure.ranks.job.supervise import supervise
from diagnose.measure.ranks.scaling.options import KEYS
from diagnose.records.ranks import ScalingRecord

MANUAL = """\
  torchrun --nproc-per-node=2 -m diagnose scaling
  torchrun --nproc-per-node=2 -m diagnose scaling --workload my_job.py --only accumulate_4
  torchrun --nnodes=2 --nproc-per-node=8 --rdzv-backend=c10d --rdzv-endpoint=HOST:29500 \\
      -m diagnose scaling --full

First the ledger: the same job on rank 0 alone and on all ranks, with and without real input,
exchange of gradients and optimizer, in interleaved blocks, so that the loss splits into causes.
Then the link at the sizes of DDP's own buckets, the cost of evaluation and checkpoints, and every
option of DDP as an experiment: all-reduces counted, gradients proven equal on all ranks, times
compared. An option that fails is a row of the table; the others still run. --only without a name
measures the ledger alone. Rank 0 writes reports/<label>/scaling.json, with everything as soon as
it is measured, and renders the report and figure from it. A rank that dies or hangs is named."""
PROGRAM = "diagnose.measure.ranks.scaling.program"


def add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--workload", default="dgca", help="bert, dgca or your .py file (default: dgca)")
    add("--size", help="size of the workload (default: the one that suits the device)")
    samples = "samples of one rank (default: the size's own; at most 4 on the CPU)"
    add_number(parser, "--batch-size", samples)
    add("--data", metavar="FILE", help="your own .tsv, .jsonl or .txt sentences")
    add(
        "--only",
        nargs="*",
        choices=KEYS,
        default=KEYS,
        metavar="NAME",
        help=f"try only these options: {', '.join(KEYS)}",
    )
    add_number(
        parser, "--seed", "random seed of weights, data order and blocks", kind=seed, default=0
    )
    add_report_rank_options(
        parser,
        "about four minutes on two cores",
        "as long as the protocol asks",
        "device and workload",
    )


def run(arguments: argparse.Namespace) -> int:
    place = find_place("scaling")
    names = (
        "device", "backend", "effort", "workload", "size", "batch_size", "data", "seed", "only",
    )  # fmt: skip
    request = {name: getattr(arguments, name) for name in names}
    if place.rank > 0:
        return follow(PROGRAM, request, arguments.timeout).code
    ready: dict[str, Any] = {}

    def grow(record: ScalingRecord | None, kind: str, content: Any) -> ScalingRecord | None:
        if kind == "ready":
            ready.update(content)
        elif kind == "job":
            record = begin_scaling(ready, arguments.seed, **content)
            return with_label(record, arguments.label, _label_parts(record, arguments))
        return record if record is None or kind == "at" else add_line(record, kind, content)

    record, outcome = lead(arguments, PROGRAM, request, supervise, grow, _count)
    if record is not None:
        _print(record, arguments)
    return outcome.code


def _label_parts(record: ScalingRecord, arguments: argparse.Namespace) -> list[str]:
    parts = [record.workload.name]
    parts += [record.workload.size] if arguments.size is not None else []
    return [*parts, f"{record.nodes} hosts"] if record.nodes > 1 else parts


def _count(record: ScalingRecord) -> str:
    if not record.series:
        return ""
    blocks, rows = len(record.series[0].slot_seconds[0]), len(record.comparisons)
    return f"{blocks} blocks of the ledger and {rows} rows of options"


def _print(record: ScalingRecord, arguments: argparse.Namespace) -> None:
    from diagnose.analyze.scaling.options import judge_options
    from diagnose.render.scaling import answer

    options = [
        {"name": each.name, "verdict": each.verdict, "reason": each.reason}
        for each in judge_options(record)
    ]
    text = answer(record)
    print_answer(record, arguments, {"answer": text, "options": options}, text)
