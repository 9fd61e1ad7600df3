"""Why are several ranks slower than one, and which option of DDP gives it back?

    torchrun --nproc-per-node=2 diagnose/ddp_scaling.py
    torchrun --nproc-per-node=2 diagnose/ddp_scaling.py --workload my_job.py --only accumulate_4
    torchrun --nnodes=2 --nproc-per-node=8 --rdzv-backend=c10d --rdzv-endpoint=HOST:29500 \\
        diagnose/ddp_scaling.py --full

First the ledger: the same job on rank 0 alone and on all ranks, with and without real input,
exchange of gradients and optimiser, in interleaved blocks, so that the loss splits into causes.
Then the link at the sizes of DDP's own buckets, the cost of evaluation and checkpoints, and every
option of DDP as an experiment: all-reduces counted, gradients proven equal on all ranks, times
compared. An option that fails is a row of the table; the others still run. --only without a name
measures the ledger alone.

Rank 0 writes reports/<label>/scaling.json, with everything as soon as it is measured, and renders
the report and figure from it. Every process that torchrun starts watches over one rank and
measures nothing itself; when a rank dies, hangs or raises, all end within the time-out and a few
seconds, and one sentence names the rank and where it was.

Exit codes: 0 fine, 2 wrong usage, 3 something could not be measured, 130 interrupted. torchrun
turns every one that is not 0 into its own 1 and adds a summary; the sentence above that summary,
which begins with "diagnose:", is the one to read.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from diagnose.commands.entry import (
    Progress,
    add_shared_options,
    describe_machine,
    run_entry,
    seed,
    whole_and_positive,
)
from diagnose.measure.ranks.job.ends import Outcome
from diagnose.measure.ranks.job.rendezvous import read_place
from diagnose.measure.ranks.job.supervise import supervise
from diagnose.measure.ranks.scaling.options import KEYS
from diagnose.records.codec import dumps, from_dict
from diagnose.records.experiments import Comparison
from diagnose.records.header import Header, Reading, WorkloadFacts
from diagnose.records.ranks import CadenceCost, Rank, ScalingRecord, Series, SizeResult
from diagnose.render import store

PROGRAM = "diagnose.measure.ranks.scaling.program"


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="torchrun --nproc-per-node=N diagnose/ddp_scaling.py",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--workload", default="dgca", help="bert, dgca or your .py file")
    parser.add_argument("--size", help="of the workload (default: the one that suits the device)")
    parser.add_argument(
        "--batch-size",
        type=whole_and_positive,
        metavar="N",
        help="samples of one rank (default: the size's own; at most 4 on the CPU)",
    )
    parser.add_argument("--data", metavar="FILE", help="your own .tsv, .jsonl or .txt sentences")
    parser.add_argument(
        "--only",
        nargs="*",
        choices=KEYS,
        default=KEYS,
        metavar="NAME",
        help=f"only these options: {', '.join(KEYS)}",
    )
    efforts = {
        "quick": "about four minutes on two cores (default on the CPU)",
        "full": "as long as the protocol asks (default on accelerators)",
        "smoke": "a few steps, to try the tool: its numbers mean nothing",
    }
    add_shared_options(parser, efforts, "device and workload")
    parser.add_argument("--seed", type=seed, default=0, help="of weights, data order and blocks")
    parser.add_argument("--json", action="store_true", help="print the answer and rows as JSON")
    return parser


class Keeper:
    """The record of rank 0: it grows with every line, and every state of it is on disk."""

    def __init__(self, arguments: argparse.Namespace, progress: Progress) -> None:
        self._arguments = arguments
        self._progress = progress
        self._ready: dict[str, Any] = {}
        self._locked = contextlib.ExitStack()
        self.record: ScalingRecord | None = None

    @property
    def directory(self) -> Path:
        assert self.record is not None
        reports: Path = self._arguments.reports
        return reports / self.record.header.label

    @property
    def kept(self) -> str:
        """What goes on from "...; "."""
        assert self.record is not None
        blocks = len(self.record.series[0].slot_seconds[0]) if self.record.series else 0
        path = self.directory / store.SCALING_NAME
        rows = len(self.record.comparisons)
        return f"{blocks} blocks of the ledger and {rows} rows of options were kept in {path}"

    def hear(self, kind: str, content: Any) -> None:
        if kind == "at":
            self._progress.show(content)
        elif kind == "ready":
            self._ready = content
        elif kind == "job":
            self._begin(**content)
        else:
            assert self.record is not None
            self.save(add_line(self.record, kind, content))

    def save(self, record: ScalingRecord) -> None:
        self.record = record
        store.save(record, self.directory)

    def close(self) -> None:
        self._locked.close()

    def _begin(
        self,
        workload: dict[str, Any],
        effort: str,
        samples_per_step: int,
        gradient_bytes: int,
        settings: dict[str, Any],
    ) -> None:
        ready, arguments = self._ready, self._arguments
        machine, source = describe_machine(ready)
        job = from_dict(WorkloadFacts, workload, "workload")
        parts = [machine.device_name, job.name]
        parts += [job.size] if arguments.size is not None else []
        parts += [f"{ready['nodes']} hosts"] if ready["nodes"] > 1 else []
        parts += ["smoke"] if effort == "smoke" else []
        self.record = ScalingRecord(
            header=Header(
                label=arguments.label or store.label_from_device_name(" ".join(parts)),
                created=datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
                source=source,
                effort=effort,
                seed=arguments.seed,
                machine=machine,
            ),
            workload=job,
            backend=ready["backend"],
            nodes=ready["nodes"],
            ranks=tuple(from_dict(Rank, each, "rank") for each in ready["ranks"]),
            samples_per_step=samples_per_step,
            gradient_bytes=gradient_bytes,
            bucket_bytes=(),
            settings=settings,
        )
        self._locked.enter_context(store.label_lock(self.directory))
        self.save(self.record)


def add_line(record: ScalingRecord, kind: str, content: Any) -> ScalingRecord:
    """The record with what one line of the ranks says."""
    if kind == "buckets":
        return replace(record, bucket_bytes=tuple(content))
    if kind == "series":
        found = tuple(from_dict(Series, each, "series") for each in content)
        return replace(record, series=found)
    if kind == "backward":
        return replace(record, backward_seconds=tuple(content))
    if kind == "watts":
        return replace(record, watts=tuple(from_dict(Reading, each, "watts") for each in content))
    if kind == "size":
        return replace(record, curve=(*record.curve, from_dict(SizeResult, content, "size")))
    if kind == "cadence":
        return replace(record, cadence=from_dict(CadenceCost, content, "cadence"))
    if kind == "comparison":
        made = from_dict(Comparison, content, "comparison")
        return replace(record, comparisons=(*record.comparisons, made))
    raise ValueError(f"a rank sent a line of the unknown kind '{kind}'")


def lead(arguments: argparse.Namespace) -> int:
    """Rank 0: measure, keep, write, tell."""
    progress = Progress()
    keeper = Keeper(arguments, progress)
    try:
        outcome = supervise(PROGRAM, _request(arguments), keeper.hear, arguments.timeout)
        if keeper.record is not None:
            culprit, complete = outcome.culprit, outcome.cause is None
            keeper.save(replace(keeper.record, culprit=culprit, complete=complete))
    except store.StoreError:
        # The disk is the reader's to repair; what was measured must not be lost with it.
        if keeper.record is not None and keeper.record.series:
            print(dumps(keeper.record).decode(), file=sys.stderr)
        raise
    finally:
        progress.clear()
        keeper.close()
    if keeper.record is None:
        print(f"diagnose: {outcome.sentence}", file=sys.stderr)
        return outcome.code
    return _conclude(keeper, keeper.record, outcome, arguments)


def follow(arguments: argparse.Namespace) -> int:
    """Every other rank: the same work, without a word unless rank 0 is gone."""
    outcome = supervise(PROGRAM, _request(arguments), lambda kind, content: None, arguments.timeout)
    if outcome.teller == read_place().rank:
        print(f"diagnose: {outcome.sentence}", file=sys.stderr)
    return outcome.code


def _request(arguments: argparse.Namespace) -> dict[str, Any]:
    names = (
        "device", "backend", "effort", "workload", "size", "batch_size", "data", "seed", "only",
    )  # fmt: skip
    return {name: getattr(arguments, name) for name in names}


def _conclude(
    keeper: Keeper, record: ScalingRecord, outcome: Outcome, arguments: argparse.Namespace
) -> int:
    from diagnose.analyze.scaling.options import judge_options
    from diagnose.render.check import write_index, write_report
    from diagnose.render.scaling import answer

    path = write_report(keeper.directory)
    write_index(arguments.reports)
    if arguments.json:
        summary = {
            "label": record.header.label,
            "answer": answer(record),
            "options": [
                {"name": each.name, "verdict": each.verdict, "reason": each.reason}
                for each in judge_options(record)
            ],
        }
        print(json.dumps(summary, ensure_ascii=False, indent=1))
    else:
        if record.header.effort == "smoke":
            print("This is no result: a smoke run takes too few steps to mean anything.")
        print(answer(record))
        print(f"report: {path}")
    sys.stdout.flush()
    if outcome.cause is not None:
        print(f"diagnose: {outcome.sentence}; {keeper.kept}", file=sys.stderr)
    return outcome.code


def main(argv: Sequence[str] | None = None) -> int:
    return run_entry(build_parser(), argv, lead, follow, "ddp_scaling.py")
