"""How fast is the link between the ranks, and is it to blame?"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from diagnose.analyze.link.expected import GIVEN_LINK
from diagnose.commands.shared.arguments import nbytes, positive
from diagnose.commands.shared.keep import complain, print_answer, with_label
from diagnose.commands.shared.progress import Progress
from diagnose.commands.shared.rank_job import (
    Launch,
    add_report_rank_options,
    find_place,
    follow,
    lead,
)
from diagnose.measure.ranks.growth import add_size, begin_link
from diagnose.measure.ranks.job.ends import Outcome
from diagnose.measure.ranks.job.supervise import run_locally, supervise
from diagnose.measure.ranks.link.trials import PROGRAM, try_settings
from diagnose.records.exit_codes import COULD_NOT_MEASURE, FINE
from diagnose.records.header import Fact, Header
from diagnose.records.ranks import BandwidthRecord

MANUAL = """\
  torchrun --nproc-per-node=2 -m diagnose link
  torchrun --nnodes=2 --nproc-per-node=8 --rdzv-backend=c10d --rdzv-endpoint=HOST:29500 \\
      -m diagnose link --link-gbit 400

All-reduces of 1 KiB to 1 GiB, of 4, 40 and 200 MB, and of DDP's bucket sizes, over NCCL on CUDA
and gloo on the CPU. Rank 0 prints a table and writes reports/<label>/bandwidth.json with the
report and figure that are rendered from it; every size is saved as soon as it is measured. A rank
that dies or hangs is named. torchrun waits 30 s (--shutdown-timeout) for a supervising process
that was itself stopped."""
# Gradients of the full DGCA model in float32: what the field report's job sends at every step.
MODEL_BYTES = 515_464_748
# As a stage of `run` it must not take longer than the others: enough to judge DDP's buckets.
LOCAL_RANKS = 2
LOCAL_MAX_BYTES = "64M"


def add_options(parser: argparse.ArgumentParser) -> None:
    add_report_rank_options(
        parser,
        "at most 40 s on two cores, 256 MiB",
        "up to 1 GiB and more repetitions",
        "the device's name",
    )
    add = parser.add_argument
    add(
        "--max-bytes", type=nbytes, metavar="N", help="largest size, such as 64M (M is 2**20 bytes)"
    )
    model = f"bytes of your model's gradients (default: {MODEL_BYTES}, the full DGCA model)"
    add("--model-bytes", type=nbytes, default=MODEL_BYTES, metavar="N", help=model)
    add("--link-gbit", type=positive, metavar="RATE", help="nominal rate of the link in Gbit/s")
    sweep = "then try NCCL's and gloo's settings one by one, in fresh processes"
    add("--env-sweep", action="store_true", help=sweep)


def run(arguments: argparse.Namespace) -> int:
    place = find_place("link")
    return _lead(arguments, supervise) if place.rank == 0 else _follow(arguments)


def measure_here(header: Header, reports: Path, *, quiet: bool) -> int:
    """Two ranks of this machine, without torchrun: the last stage of `run`."""
    words = ["--label", header.label, "--reports", str(reports), "--max-bytes", LOCAL_MAX_BYTES]
    words += ["--device", header.machine.device, f"--{header.effort}"]
    parser = argparse.ArgumentParser()
    add_options(parser)
    launch = functools.partial(run_locally, LOCAL_RANKS)
    return _lead(parser.parse_args(words), launch, quiet=quiet)


def _lead(arguments: argparse.Namespace, launch: Launch, *, quiet: bool = False) -> int:
    request = _request(arguments)
    heard: dict[str, Any] = {}

    def grow(record: BandwidthRecord | None, kind: str, content: Any) -> BandwidthRecord | None:
        heard[kind] = content
        if kind == "plan":
            return _begin(arguments, heard["ready"], content)
        return record and (add_size(record, content) if kind == "size" else record)

    def count(record: BandwidthRecord) -> str:
        planned = len(heard["plan"]["sizes"])
        return f"{len(record.sizes)} of {planned} sizes" if record.sizes else ""

    def sweep(
        record: BandwidthRecord, outcome: Outcome, progress: Progress
    ) -> Iterator[BandwidthRecord]:
        if arguments.env_sweep and _may_go_on(outcome):
            backend, nodes, seconds = record.backend, record.nodes, arguments.timeout
            for trial in try_settings(request, backend, nodes, seconds, progress.show):
                record = replace(record, trials=(*record.trials, trial))
                yield record

    record, outcome = lead(arguments, PROGRAM, request, launch, grow, count, sweep)
    if record is None:
        return outcome.code
    return _conclude(record, arguments, quiet=quiet) or outcome.code


def _begin(
    arguments: argparse.Namespace, ready: dict[str, Any], plan: dict[str, Any]
) -> BandwidthRecord:
    record = begin_link(ready, plan["effort"], plan["overhead_seconds"])
    if arguments.link_gbit is not None:
        given = {GIVEN_LINK: Fact(f"{arguments.link_gbit:g}")}
        record = replace(record, surroundings={**record.surroundings, **given})
    hosts = [f"{record.nodes} hosts"] if record.nodes > 1 else []
    return with_label(record, arguments.label, hosts)


def _follow(arguments: argparse.Namespace) -> int:
    heard: dict[str, Any] = {}
    request = _request(arguments)
    outcome = follow(PROGRAM, request, arguments.timeout, heard.__setitem__)
    if arguments.env_sweep and "ready" in heard and _may_go_on(outcome):
        backend, nodes = heard["ready"]["backend"], heard["ready"]["nodes"]
        for _ in try_settings(request, backend, nodes, arguments.timeout, lambda name: None):
            pass
    return outcome.code


def _request(arguments: argparse.Namespace) -> dict[str, Any]:
    names = ("device", "backend", "effort", "max_bytes", "model_bytes")
    return {name: getattr(arguments, name) for name in names}


def _may_go_on(outcome: Outcome) -> bool:
    """Trials explain a hang best, so only an end that concerns them too stops them."""
    return outcome.cause is None or outcome.cause.kind in (
        "failed",
        "hung",
        "stopped",
        "lost peers",
    )


def _conclude(record: BandwidthRecord, arguments: argparse.Namespace, *, quiet: bool) -> int:
    from diagnose.analyze.link.verdict import judge
    from diagnose.render.link import answer, print_table

    invalid = [each for each in record.sizes if each.status == "invalid"]
    for each in invalid:
        complain(f"all-reduce of {each.nbytes} bytes: {each.reason}")
    summary = {
        "answer": answer(record),
        "findings": [vars(finding) for finding in judge(record)],
        "sizes": {str(each.nbytes): each.status for each in record.sizes},
    }
    if not quiet:
        print_answer(record, arguments, summary, print_table(record))
    return COULD_NOT_MEASURE if invalid else FINE
