"""How does a command lead a job of several ranks? Rank 0 keeps and speaks, the others follow.

Every process that torchrun starts watches over one rank and measures nothing itself. When a rank
dies, hangs or raises, all end within the time-out and a few seconds, and one sentence names the
rank and where it was.
"""

from __future__ import annotations

import argparse
import functools
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from diagnose.commands.shared.arguments import add_effort_options, add_report_options, add_seconds
from diagnose.commands.shared.keep import complain, keep_report
from diagnose.commands.shared.progress import Progress
from diagnose.measure.ranks.job.ends import Outcome
from diagnose.measure.ranks.job.rendezvous import Place, Refusal, read_place
from diagnose.measure.ranks.job.supervise import OnLine, run_locally, supervise
from diagnose.records.ranks import BandwidthRecord, ScalingRecord

TIMEOUT_SECONDS = 60.0

Launch = Callable[[str, Mapping[str, Any], OnLine, float], Outcome]
Ranked = TypeVar("Ranked", BandwidthRecord, ScalingRecord)


def add_rank_options(parser: argparse.ArgumentParser, timeout: float = TIMEOUT_SECONDS) -> None:
    parser.add_argument("--backend", help="gloo, nccl, ... (default: the device's own)")
    add_seconds(parser, "--timeout", "longest silence of a rank", timeout)


def add_report_rank_options(
    parser: argparse.ArgumentParser, quick: str, full: str, label_from: str
) -> None:
    add_rank_options(parser)
    add_effort_options(parser, quick, full)
    add_report_options(parser, label_from)


def find_place(verb: str) -> Place:
    """This process's place in the job; Refusal if nobody has started one."""
    try:
        return read_place()
    except Refusal as error:
        advice = f"start it with torchrun --nproc-per-node=2 -m diagnose {verb}"
        raise Refusal(f"{error}; {advice}") from None


def launch_ranks(ranks: int) -> Launch:
    """The ranks that torchrun has started, else so many on this machine."""
    return supervise if "RANK" in os.environ else functools.partial(run_locally, ranks)


def lead(
    arguments: argparse.Namespace,
    program: str,
    request: Mapping[str, Any],
    launch: Launch,
    grow: Callable[[Ranked | None, str, Any], Ranked | None],
    count: Callable[[Ranked], str],
    go_on: Callable[[Ranked, Outcome, Progress], Iterable[Ranked]] = lambda *_: (),
) -> tuple[Ranked | None, Outcome]:
    """Rank 0: measure, keep every state, write the report, and say what went wrong.

    `grow` is the record with what one line of the ranks says, None until one of them begins it;
    `go_on` adds to the record once the ranks have ended.
    """
    progress, keeper = Progress(), keep_report(arguments, count)

    def hear(kind: str, content: Any) -> None:
        before = keeper.record
        record = grow(before, kind, content)
        if kind == "at":
            progress.show(content)
        elif record is not None:
            if before is None:
                keeper.lock(arguments.reports / record.header.label)
            keeper.save(record)

    with progress, keeper:
        outcome = launch(program, request, hear, arguments.timeout)
        record = keeper.record
        if record is not None:
            record = replace(record, culprit=outcome.culprit, complete=outcome.cause is None)
            keeper.save(record)
            for more in go_on(record, outcome, progress):
                record = more
                keeper.save(more)
            keeper.finish(record)
    if outcome.cause is not None:
        complain("; ".join(filter(None, (outcome.sentence, keeper.kept))))
    return record, outcome


def follow(
    program: str,
    request: Mapping[str, Any],
    timeout: float,
    hear: OnLine = lambda kind, content: None,
) -> Outcome:
    """Every rank but the first: the same steps, without a word unless rank 0 is gone."""
    outcome = supervise(program, request, hear, timeout)
    if outcome.cause is not None and outcome.teller == read_place().rank:
        complain(outcome.sentence)
    return outcome
