"""What does `batch-size` do? Finds the largest batch that fits, on all ranks, and the best one."""

from __future__ import annotations

import argparse
import contextlib
import os
from collections.abc import Iterator
from dataclasses import replace

from diagnose.analyze.batch_size import answer, judge, with_batch_used
from diagnose.commands.run import label_parts, read_job
from diagnose.commands.shared.arguments import add_job_options, add_number, count
from diagnose.commands.shared.keep import complain, keep_report, print_answer, with_label
from diagnose.commands.shared.progress import Progress
from diagnose.measure.batch_size.agree import Agreement, own_card
from diagnose.measure.batch_size.finder import PROBE_SECONDS, Finder
from diagnose.measure.batch_size.plan import MAX_CROPS, Wanted
from diagnose.measure.ranks.job.rendezvous import Place, read_place
from diagnose.measure.session import Session
from diagnose.records.batch_size import BatchSizeRecord
from diagnose.records.evaluation_options import DTYPES
from diagnose.records.exit_codes import COULD_NOT_MEASURE, FINE

MANUAL = """examples:
  python -m diagnose batch-size --workload my_job.py --sweep 1 2 4 8 16
  python -m diagnose batch-size --workload dgca --size ranks --memory-limit 1100 --ddp
  torchrun --nproc-per-node=8 -m diagnose batch-size --workload molmo --max-crops-list 12 13"""


def add_options(parser: argparse.ArgumentParser) -> None:
    add_job_options(parser, "bert", "probe")
    add_crops_options(parser)
    ddp = "search a second time in a replica of DDP, whose gradient buckets need memory"
    parser.add_argument("--ddp", action="store_true", help=ddp)
    begin = "where to begin, or the only one to try (default: by memory and parameters)"
    add_number(parser, "--batch-size", begin)
    attempts = "probes of one search (default: as many as the exact answer takes)"
    add_number(parser, "--max-attempts", attempts)
    memory = "MB that the job may use, its own weights included (default: all that is free)"
    add_number(parser, "--memory-limit", memory)
    answer = "longest answer of a job that writes, as in your evaluation (default: 16, as in "
    add_number(parser, "--max-new-tokens", f"{answer}profile-accuracy; evaluate has 256)")
    add = parser.add_argument
    add(
        "--sweep",
        type=count,
        nargs="+",
        default=[],
        metavar="N",
        help="time these batch sizes (default: doubling up to the largest)",
    )
    add(
        "--torch-dtype",
        choices=DTYPES,
        default=DTYPES[0],
        help="dtype of the weights of a job that writes (default: as saved)",
    )


def add_crops_options(parser: argparse.ArgumentParser) -> None:
    """The caps of image tiles, and whether the batch size is searched for each of them."""
    add = parser.add_argument
    caps = ", ".join(map(str, MAX_CROPS))
    add(
        "--max-crops-list",
        type=count,
        nargs="+",
        default=[],
        metavar="N",
        help="search once for each of these limits of image tiles",
    )
    add_number(
        parser, "--start-from-max-crops", f"leave out smaller limits (of {caps} unless listed)"
    )
    add(
        "--auto-adjust-batch-size",
        action=argparse.BooleanOptionalAction,
        dest="auto_adjust",
        default=True,
        help="search for a larger batch that fits, instead of taking --batch-size as it is",
    )


def run(arguments: argparse.Namespace) -> int:
    job = replace(
        read_job(arguments),
        torch_dtype=arguments.torch_dtype,
        max_new_tokens=arguments.max_new_tokens,
    )
    wanted = Wanted(
        base=arguments.batch_size,
        adjust=arguments.auto_adjust,
        attempts=arguments.max_attempts,
        sweep=tuple(arguments.sweep),
        max_crops=tuple(arguments.max_crops_list),
        start_from=arguments.start_from_max_crops,
        probe_seconds=arguments.timeout,
        memory_megabytes=arguments.memory_limit,
        ddp=arguments.ddp,
    )
    with _ranks(arguments.timeout) as (place, agreement):
        ranks, sharing = (place.world_size, place.local_world_size) if place else (1, 1)
        with (
            Progress() as progress,
            Session.open(job, progress) as session,
            keep_report(arguments, _count) as keeper,
        ):
            finder = Finder(session, wanted, agreement, ranks, sharing)
            record = finder.open()
            record = with_label(record, arguments.label, _label_parts(record, arguments))
            if place is not None and place.rank > 0:
                return _code(finder.measure(record, lambda seen: None))
            keeper.lock(arguments.reports / record.header.label)
            record = finder.measure(record, lambda seen: keeper.save(with_batch_used(seen)))
            record = with_batch_used(record)
            keeper.finish(record)
        _conclude(record, arguments)
        return _code(record)


@contextlib.contextmanager
def _ranks(probe_seconds: float | None) -> Iterator[tuple[Place | None, Agreement | None]]:
    """The other ranks, where torchrun has started some."""
    if os.environ.get("WORLD_SIZE", "1") == "1":
        yield None, None
        return
    place = read_place()
    agreement = Agreement(place, probe_seconds or max(PROBE_SECONDS.values()))
    os.environ.update(own_card(place))
    with agreement:
        yield place, agreement


def _label_parts(record: BatchSizeRecord, arguments: argparse.Namespace) -> list[str]:
    parts = [record.workload.name, *label_parts(record.workload, arguments)]
    parts += [arguments.torch_dtype] if arguments.torch_dtype != DTYPES[0] else []
    tokens = arguments.max_new_tokens
    return [*parts, f"{tokens} tokens"] if tokens is not None else parts


def _count(record: BatchSizeRecord) -> str:
    found = len(record.configurations)
    return f"{found} of {len(record.planned)} searches" if found else ""


def _conclude(record: BatchSizeRecord, arguments: argparse.Namespace) -> None:
    found = [
        {
            "configuration": each.configuration.key,
            "max_crops": each.configuration.settings.get("max_crops"),
            "batch_size_used": each.configuration.batch_size_used,
            "largest": each.largest,
            "is_exact": each.is_exact,
            "knee": each.knee,
            "use": each.use,
            "reason": each.reason,
        }
        for each in map(judge, record.configurations)
    ]
    text = answer(record)
    print_answer(record, arguments, {"answer": text, "configurations": found}, text)
    for each in record.configurations:
        if each.status != "done":
            complain(f"{each.key}: {each.reason}")


def _code(record: BatchSizeRecord) -> int:
    done = all(each.status == "done" for each in record.configurations)
    return FINE if done else COULD_NOT_MEASURE
