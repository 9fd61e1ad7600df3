"""What does `batch-size` do? Its options, and the way from them to a report and an exit code."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

from diagnose.analyze.batch_size import answer, judge
from diagnose.commands.entry import whole_and_positive
from diagnose.commands.keep import label_parts, measure_and_keep, read_job, write
from diagnose.commands.progress import Console
from diagnose.measure.batch_size.agree import Agreement, own_card
from diagnose.measure.batch_size.finder import PROBE_SECONDS, Finder
from diagnose.measure.batch_size.plan import MAX_CROPS, Wanted
from diagnose.measure.ranks.job.ends import COULD_NOT_MEASURE, FINE
from diagnose.measure.ranks.job.rendezvous import NoRendezvous, Place, Refusal, read_place
from diagnose.measure.session import CouldNotOpen, Job, Refused, Session
from diagnose.records.batch_size import BatchSizeRecord
from diagnose.records.evaluation_options import DTYPES
from diagnose.render import store


def add_options(parser: argparse.ArgumentParser) -> None:
    """What `batch-size` has beside the options of every measuring verb; underscores work too."""
    parser.add_argument(
        "--max-crops-list",
        "--max_crops_list",
        type=whole_and_positive,
        nargs="+",
        default=[],
        metavar="N",
        help="search once for each of these caps of image tiles",
    )
    parser.add_argument(
        "--start-from-max-crops",
        "--start_from_max_crops",
        type=whole_and_positive,
        metavar="N",
        help=f"leave out smaller caps (of {', '.join(map(str, MAX_CROPS))} unless listed)",
    )
    parser.add_argument(
        "--batch-size",
        "--batch_size",
        type=whole_and_positive,
        metavar="N",
        help="where to begin, or the only one to try (default: by memory and parameters)",
    )
    parser.add_argument(
        "--auto-adjust-batch-size",
        "--auto_adjust_batch_size",
        dest="auto_adjust",
        action="store_true",
        default=True,
        help="search for the largest that fits (default)",
    )
    parser.add_argument(
        "--no-auto-adjust-batch-size",
        "--no_auto_adjust_batch_size",
        dest="auto_adjust",
        action="store_false",
        help="try only --batch-size, or the workload's own",
    )
    parser.add_argument(
        "--max-attempts",
        "--max_attempts",
        type=whole_and_positive,
        metavar="N",
        help="probes of one search (default: as many as the exact answer takes)",
    )
    parser.add_argument(
        "--sweep",
        type=whole_and_positive,
        nargs="+",
        default=[],
        metavar="N",
        help="time these batch sizes (default: doubling up to the largest)",
    )
    parser.add_argument(
        "--torch-dtype",
        "--torch_dtype",
        choices=DTYPES,
        default=DTYPES[0],
        help="of the weights of textgen and vqa (default: auto, as they were saved)",
    )
    parser.add_argument(
        "--max-new-tokens",
        "--max_new_tokens",
        type=whole_and_positive,
        metavar="N",
        help="longest answer of textgen and vqa: as long as in your evaluation (default: 16, as in "
        "profile_accuracy.py; evaluate.py has 256)",
    )


def run(arguments: argparse.Namespace) -> int:
    if arguments.label is not None:
        store.validate_label(arguments.label)
    with _ranks(arguments.timeout) as (place, agreement):
        ranks, sharing = (place.world_size, place.local_world_size) if place else (1, 1)
        with Console() as console, Session.open(_job(arguments), console) as session:
            finder = Finder(session, _wanted(arguments), agreement, ranks, sharing)
            record = finder.open()
            label = arguments.label or _default_label(record, arguments)
            record = replace(record, header=replace(record.header, label=label))
            if place is not None and place.rank > 0:
                return _code(finder.measure(record, lambda seen: None))
            return _measure(finder, record, arguments, console)


def _measure(
    finder: Finder, record: BatchSizeRecord, arguments: argparse.Namespace, console: Console
) -> int:
    directory = arguments.reports / record.header.label
    with store.label_lock(directory):
        record = measure_and_keep(
            finder.measure, record, directory, console, partial(_write_found, directory)
        )
    _conclude(record, directory, as_json=arguments.json)
    return _code(record)


def _write_found(directory: Path, record: BatchSizeRecord) -> None:
    if record.configurations:
        write(directory)


@contextlib.contextmanager
def _ranks(probe_seconds: float | None) -> Iterator[tuple[Place | None, Agreement | None]]:
    """The other ranks, where torchrun has started some."""
    if os.environ.get("WORLD_SIZE", "1") == "1":
        yield None, None
        return
    try:
        place = read_place()
        agreement = Agreement(place, probe_seconds or max(PROBE_SECONDS.values()))
    except Refusal as error:
        raise Refused(str(error)) from None
    except NoRendezvous as error:
        raise CouldNotOpen(str(error)) from None
    os.environ.update(own_card(place))
    with agreement:
        yield place, agreement


def _job(arguments: argparse.Namespace) -> Job:
    return replace(
        read_job(arguments),
        torch_dtype=arguments.torch_dtype,
        max_new_tokens=arguments.max_new_tokens,
    )


def _wanted(arguments: argparse.Namespace) -> Wanted:
    return Wanted(
        base=arguments.batch_size,
        adjust=arguments.auto_adjust,
        attempts=arguments.max_attempts,
        sweep=tuple(arguments.sweep),
        max_crops=tuple(arguments.max_crops_list),
        start_from=arguments.start_from_max_crops,
        probe_seconds=arguments.timeout,
    )


def _default_label(record: BatchSizeRecord, arguments: argparse.Namespace) -> str:
    parts = [record.header.machine.device_name, record.workload.name]
    parts += label_parts(record.workload, arguments)
    parts += [arguments.torch_dtype] if arguments.torch_dtype != DTYPES[0] else []
    tokens = arguments.max_new_tokens
    parts += [f"{tokens} tokens"] if tokens is not None else []
    parts += ["smoke"] if record.header.effort == "smoke" else []
    return store.label_from_device_name(" ".join(parts))


def _conclude(record: BatchSizeRecord, directory: Path, *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(_summary(record), ensure_ascii=False, indent=1))
    else:
        print(answer(record))
        print(f"report: {directory / 'report.md'}")
    for each in record.configurations:
        if each.status != "done":
            print(f"diagnose: {each.key}: {each.reason}", file=sys.stderr)


def _summary(record: BatchSizeRecord) -> dict[str, object]:
    answers = [judge(each) for each in record.configurations]
    return {
        "label": record.header.label,
        "answer": answer(record),
        "configurations": [
            {
                "configuration": each.configuration.key,
                "largest": each.largest,
                "is_exact": each.is_exact,
                "knee": each.knee,
                "use": each.use,
                "reason": each.reason,
            }
            for each in answers
        ],
    }


def _code(record: BatchSizeRecord) -> int:
    done = all(each.status == "done" for each in record.configurations)
    return FINE if done else COULD_NOT_MEASURE
