"""What does `optimize` do? Tries every optimization of a job and says which one is worth it."""

from __future__ import annotations

import argparse
from dataclasses import replace

from diagnose.analyze.optimize.experiment import judge_all
from diagnose.commands.run import label_parts, read_job
from diagnose.commands.shared.arguments import add_job_options, add_number
from diagnose.commands.shared.keep import BROKEN, complain, keep_report, print_answer, with_label
from diagnose.commands.shared.progress import Progress
from diagnose.measure.optimize.optimizer import (
    EXPERIMENT_KEYS,
    measure_optimize,
    open_optimize,
)
from diagnose.measure.session import Refused, Session
from diagnose.records.exit_codes import COULD_NOT_MEASURE, FINE
from diagnose.records.experiments import OptimizeRecord

SIDES = 2  # of a comparison: both are in memory
MANUAL = """example:
  python -m diagnose optimize --only apply_prompt gated_fusion"""


def add_options(parser: argparse.ArgumentParser) -> None:
    add_job_options(parser, "dgca", "experiment")
    parser.add_argument(
        "--only",
        nargs="+",
        metavar="NAME",
        help=f"try only these; for dgca: {', '.join(EXPERIMENT_KEYS)}",
    )
    samples = "in your whole evaluation, to predict its total time (textgen, vqa, molmo)"
    add_number(parser, "--samples", samples)


def run(arguments: argparse.Namespace) -> int:
    with (
        Progress() as progress,
        Session.open(replace(read_job(arguments), copies=SIDES), progress) as session,
        keep_report(arguments, _count) as keeper,
    ):
        record = open_optimize(session, arguments.only)
        if arguments.samples is not None and not session.ready["evaluates"]:
            raise Refused(
                f"workload {record.workload.name} evaluates nothing, so --samples has no use; "
                "textgen, vqa and molmo do"
            )
        parts = [record.workload.name, *label_parts(record.workload, arguments)]
        record = with_label(record, arguments.label, [*parts, *(arguments.only or [])])
        record = replace(record, samples=arguments.samples)
        keeper.lock(arguments.reports / record.header.label)
        record = measure_optimize(session, record, keeper.save, arguments.timeout)
        keeper.finish(record)
    return _conclude(record, arguments)


def _count(record: OptimizeRecord) -> str:
    tried = {each.key for each in record.comparisons}
    return f"{len(tried)} of {len(record.planned)} experiments" if tried else ""


def _conclude(record: OptimizeRecord, arguments: argparse.Namespace) -> int:
    from diagnose.render.optimize.report import answer

    outcomes = judge_all(record)
    verdicts = [{"name": o.name, "verdict": o.verdict, "reason": o.reason} for o in outcomes]
    print_answer(record, arguments, {"verdicts": verdicts}, answer(record, outcomes))
    tried = (*record.comparisons, *record.rungs)
    broken = [each for each in tried if each.status in BROKEN]
    for each in broken:
        complain(f"{each.key} {each.status}: {each.reason}")
    return COULD_NOT_MEASURE if broken else FINE
