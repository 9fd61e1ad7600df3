"""What does `trace` do? Says from a profiler's file why a job is slow, without running it."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict, replace
from pathlib import Path

from diagnose.analyze.trace.rules import diagnose, slowest
from diagnose.commands.shared.arguments import add_reports_option
from diagnose.commands.shared.keep import Keeper, keep_report
from diagnose.measure.session import CouldNotOpen, Refused
from diagnose.measure.trace.perfetto import write_with_track
from diagnose.measure.trace.reading import find_files, read_traces
from diagnose.measure.trace.stream import HAS_EXTRA
from diagnose.records.exit_codes import FINE
from diagnose.records.trace import TraceRecord
from diagnose.render import store
from diagnose.render.trace.report import summarize

MANUAL = """examples:
  python -m diagnose trace trace.json.gz
  python -m diagnose trace --json - rank0.json rank1.json
  python -m diagnose trace --label my-model folder_of_ranks"""

_LARGE_BYTES = 50e6
_SLOWLY = "diagnose: a large trace is read faster after pip install 'torch-diagnose[trace]'"


def add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    text = "a torch.profiler (Kineto, Chrome) trace, plain or gz; each rank's; or a folder of them"
    add("files", nargs="+", type=Path, metavar="FILE", help=text)
    add("--label", help="keep the record and write a report to DIR/LABEL (default: only print)")
    add_reports_option(parser)
    add("--json", metavar="OUT", help="write the findings there too; - is standard output")
    add(
        "--perfetto",
        type=Path,
        metavar="OUT",
        help="write the trace again, with the findings as a track of their own",
    )


def run(arguments: argparse.Namespace) -> int:
    inputs = {each.resolve() for each in find_files(arguments.files)}
    for option in ("json", "perfetto"):
        target = getattr(arguments, option)
        if target in (None, "-"):
            continue
        if Path(target).resolve() in inputs:
            raise Refused(f"--{option} would overwrite the trace {target}; name another file")
        if not Path(target).parent.is_dir():
            raise Refused(f"--{option}: there is no directory {Path(target).parent}")
    label = arguments.label or store.label_from_device_name(arguments.files[0].stem)
    if not HAS_EXTRA and sum(each.stat().st_size for each in inputs) > _LARGE_BYTES:
        print(_SLOWLY, file=sys.stderr, flush=True)
    record = read_traces(arguments.files, label)
    print(summarize(record), file=sys.stderr, flush=True)
    if arguments.json is not None:
        _write_json(record, arguments.json)
    if arguments.perfetto is not None:
        _write_perfetto(record, arguments)
    if arguments.label is not None:
        directory = arguments.reports / label
        keeper: Keeper[TraceRecord] = keep_report(arguments, lambda kept: "the trace's facts")
        with keeper:
            keeper.lock(directory)
            keeper.finish(record)
        print(f"report: {directory / 'report.md'}", file=sys.stderr, flush=True)
    return FINE


def _write_json(record: TraceRecord, target: str) -> None:
    answer = asdict(diagnose(record))
    answer["ranks"] = [asdict(replace(each, picture=())) for each in record.ranks]
    text = json.dumps(answer, ensure_ascii=False, indent=1)
    if target == "-":
        print(text, flush=True)
    else:
        try:
            Path(target).write_text(text + "\n", encoding="utf-8")
        except OSError as error:
            raise CouldNotOpen(f"--json: {target} cannot be written: {error.strerror}") from None


def _write_perfetto(record: TraceRecord, arguments: argparse.Namespace) -> None:
    """Of the rank that the findings speak of; Perfetto shows the others beside it by itself."""
    rank = slowest(record)
    file = next(each for each in find_files(arguments.files) if each.name == rank.file)
    try:
        write_with_track(file, arguments.perfetto, rank, diagnose(record))
    except OSError as error:
        why = error.strerror or str(error)
        raise CouldNotOpen(f"--perfetto: {arguments.perfetto} cannot be written: {why}") from None
