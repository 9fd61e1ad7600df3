"""How fast is the link between the ranks, and is it to blame?

    torchrun --nproc-per-node=2 diagnose/ddp_bandwidth.py
    torchrun --nnodes=2 --nproc-per-node=8 --rdzv-backend=c10d --rdzv-endpoint=HOST:29500 \\
        diagnose/ddp_bandwidth.py --link-gbit 400

All-reduces of 1 KiB to 1 GiB, of 4, 40 and 200 MB, and of DDP's bucket sizes, over NCCL on CUDA
and gloo on the CPU. Rank 0 prints a table and writes reports/<label>/bandwidth.json with the
report and figure that are rendered from it; every size is saved as soon as it is measured.

Every process that torchrun starts watches over one rank and measures nothing itself. When a rank
dies, hangs or raises, all end within the time-out and a few seconds, and one sentence names the
rank and where it was. A supervising process that is itself stopped is ended by torchrun, which
waits 30 s first (--shutdown-timeout).

Exit codes: 0 fine, 2 wrong usage, 3 something could not be measured, 130 interrupted. torchrun
turns every one that is not 0 into its own 1 and adds a summary; the sentence above that summary,
which begins with "diagnose:", is the one to read.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from diagnose.analyze.link.expected import GIVEN_LINK
from diagnose.commands.entry import (
    Progress,
    add_shared_options,
    describe_machine,
    positive,
    run_entry,
)
from diagnose.measure.ranks.job.ends import COULD_NOT_MEASURE, FINE, Outcome
from diagnose.measure.ranks.job.rendezvous import read_place
from diagnose.measure.ranks.job.supervise import OnLine, run_locally, supervise
from diagnose.measure.ranks.link.surroundings import read_surroundings
from diagnose.measure.ranks.link.trials import PROGRAM, try_settings
from diagnose.records.codec import dumps, from_dict
from diagnose.records.header import Fact, Header
from diagnose.records.ranks import BandwidthRecord, EnvironmentTrial, Rank, SizeResult
from diagnose.render import store

# Gradients of the full DGCA model in float32: what the field report's job sends at every step.
MODEL_BYTES = 515_464_748
# As a stage of `run` it must not take longer than the others: enough to judge DDP's buckets.
LOCAL_RANKS = 2
LOCAL_MAX_BYTES = "64M"
Launch = Callable[[str, Mapping[str, Any], OnLine, float], Outcome]

_SUFFIXES = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30}
_SMALLEST = 2**10


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="torchrun --nproc-per-node=N diagnose/ddp_bandwidth.py",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    efforts = {
        "quick": "at most 40 s on two cores, 256 MiB (default on the CPU)",
        "full": "up to 1 GiB and more repetitions (default on accelerators)",
        "smoke": "up to 1 MiB, to try the tool: its numbers mean nothing",
    }
    add_shared_options(parser, efforts, "the device's name")
    parser.add_argument(
        "--max-bytes", type=_bytes, metavar="N", help="largest size, such as 64M (of 2**20)"
    )
    parser.add_argument(
        "--model-bytes",
        type=_bytes,
        default=MODEL_BYTES,
        metavar="N",
        help=f"gradients of your model (default: {MODEL_BYTES}, the full DGCA model)",
    )
    parser.add_argument(
        "--link-gbit", type=positive, metavar="RATE", help="nominal rate of the link in Gbit/s"
    )
    parser.add_argument(
        "--env-sweep",
        action="store_true",
        help="then try NCCL's and gloo's settings one by one, in fresh processes",
    )
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")
    return parser


def _bytes(text: str) -> int:
    digits, suffix = (text[:-1], text[-1:].upper()) if text[-1:].isalpha() else (text, "")
    if not digits.isdecimal() or suffix not in _SUFFIXES:
        raise argparse.ArgumentTypeError(f"'{text}' is no size; write 4000000, 64M or 1G")
    value = int(digits) * _SUFFIXES[suffix]
    if value < _SMALLEST:
        raise argparse.ArgumentTypeError(f"'{text}' is under the smallest size, {_SMALLEST} bytes")
    return value


class _Keeper:
    """The record of rank 0: it grows by a size at a time, and every state of it is on disk."""

    def __init__(self, arguments: argparse.Namespace, progress: Progress) -> None:
        self._arguments = arguments
        self._progress = progress
        self._ready: dict[str, Any] = {}
        self._locked = contextlib.ExitStack()
        self._planned = 0
        self.record: BandwidthRecord | None = None

    @property
    def directory(self) -> Path:
        assert self.record is not None
        reports: Path = self._arguments.reports
        return reports / self.record.header.label

    @property
    def kept(self) -> str:
        """What goes on from "...; "."""
        assert self.record is not None
        path = self.directory / store.BANDWIDTH_NAME
        return f"{len(self.record.sizes)} of {self._planned} sizes were kept in {path}"

    def hear(self, kind: str, content: Any) -> None:
        if kind == "at":
            self._progress.show(content)
        elif kind == "ready":
            self._ready = content
        elif kind == "plan":
            self._begin(**content)
        elif kind == "size":
            assert self.record is not None
            sizes = (*self.record.sizes, from_dict(SizeResult, content, "size"))
            self.save(replace(self.record, sizes=sizes))
            self._progress.advance(len(sizes), self._planned)

    def add_trial(self, trial: EnvironmentTrial) -> None:
        assert self.record is not None
        self.save(replace(self.record, trials=(*self.record.trials, trial)))

    def save(self, record: BandwidthRecord) -> None:
        self.record = record
        store.save(record, self.directory)

    def close(self) -> None:
        self._locked.close()

    def _begin(self, effort: str, sizes: Sequence[int], overhead_seconds: float) -> None:
        ready, arguments = self._ready, self._arguments
        machine, source = describe_machine(ready)
        ranks = tuple(from_dict(Rank, each, "rank") for each in ready["ranks"])
        home = Path.home() if os.environ.get("HOME") else None
        surroundings = read_surroundings(os.environ, machine, ranks, home)
        if arguments.link_gbit is not None:
            surroundings[GIVEN_LINK] = Fact(f"{arguments.link_gbit:g}")
        parts = [machine.device_name]
        parts += [f"{ready['nodes']} hosts"] if ready["nodes"] > 1 else []
        parts += ["smoke"] if effort == "smoke" else []
        self._planned = len(sizes)
        self.record = BandwidthRecord(
            header=Header(
                label=arguments.label or store.label_from_device_name(" ".join(parts)),
                created=datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
                source=source,
                effort=effort,
                machine=machine,
            ),
            backend=ready["backend"],
            nodes=ready["nodes"],
            ranks=ranks,
            surroundings=surroundings,
            overhead_seconds=overhead_seconds,
        )
        self._locked.enter_context(store.label_lock(self.directory))
        self.save(self.record)


def measure_here(*, label: str, reports: Path, device: str, effort: str, quiet: bool) -> int:
    """Two ranks of this machine, without torchrun: the last stage of `run`."""
    words = ["--label", label, "--reports", str(reports), "--device", device, f"--{effort}"]
    words += ["--max-bytes", LOCAL_MAX_BYTES]
    launch = functools.partial(run_locally, LOCAL_RANKS)
    return lead(build_parser().parse_args(words), launch, tell=not quiet)


def lead(arguments: argparse.Namespace, launch: Launch = supervise, *, tell: bool = True) -> int:
    """Rank 0: measure, keep, write, tell."""
    progress = Progress()
    keeper = _Keeper(arguments, progress)
    try:
        request = _request(arguments)
        outcome = launch(PROGRAM, request, keeper.hear, arguments.timeout)
        record = keeper.record
        if record is not None:
            culprit, complete = outcome.culprit, outcome.cause is None
            keeper.save(replace(record, culprit=culprit, complete=complete))
            if arguments.env_sweep and _may_go_on(outcome):
                backend, nodes = record.backend, record.nodes
                for trial in try_settings(
                    request, backend, nodes, arguments.timeout, progress.show
                ):
                    keeper.add_trial(trial)
    except store.StoreError:
        # The disk is the reader's to repair; what was measured must not be lost with it.
        if keeper.record is not None and keeper.record.sizes:
            print(dumps(keeper.record).decode(), file=sys.stderr)
        raise
    finally:
        progress.clear()
        keeper.close()
    if keeper.record is None:
        print(f"diagnose: {outcome.sentence}", file=sys.stderr)
        return outcome.code
    return _conclude(keeper, keeper.record, outcome, arguments, tell=tell)


def follow(arguments: argparse.Namespace) -> int:
    """Every other rank: the same steps, without a word unless rank 0 is gone."""
    heard: dict[str, Any] = {}
    request = _request(arguments)
    outcome = supervise(PROGRAM, request, heard.__setitem__, arguments.timeout)
    if arguments.env_sweep and "ready" in heard and _may_go_on(outcome):
        backend, nodes = heard["ready"]["backend"], heard["ready"]["nodes"]
        for _ in try_settings(request, backend, nodes, arguments.timeout, lambda name: None):
            pass
    if outcome.teller == read_place().rank:
        print(f"diagnose: {outcome.sentence}", file=sys.stderr)
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


def _conclude(
    keeper: _Keeper,
    record: BandwidthRecord,
    outcome: Outcome,
    arguments: argparse.Namespace,
    *,
    tell: bool,
) -> int:
    from diagnose.analyze.link.verdict import judge
    from diagnose.render.check import write_index, write_report
    from diagnose.render.link import answer, print_table

    invalid = [each for each in record.sizes if each.status == "invalid"]
    for each in invalid:
        print(f"diagnose: all-reduce of {each.nbytes} bytes: {each.reason}", file=sys.stderr)
    if outcome.cause is not None:
        print(f"diagnose: {outcome.sentence}; {keeper.kept}", file=sys.stderr)
    path = write_report(keeper.directory)
    write_index(arguments.reports)
    if arguments.json:
        summary = {
            "label": record.header.label,
            "answer": answer(record),
            "findings": [vars(finding) for finding in judge(record)],
            "sizes": {str(each.nbytes): each.status for each in record.sizes},
        }
        print(json.dumps(summary, ensure_ascii=False, indent=1))
    elif tell:
        if record.header.effort == "smoke":
            print("This is no result: a smoke run takes too few repetitions to mean anything.")
        print(print_table(record))
        print(f"report: {path}")
    sys.stdout.flush()
    return COULD_NOT_MEASURE if invalid and outcome.code == FINE else outcome.code


def main(argv: Sequence[str] | None = None) -> int:
    return run_entry(build_parser(), argv, lead, follow, "ddp_bandwidth.py")
