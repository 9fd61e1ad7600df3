"""What does `run` do? Measures the job stage by stage, then the link, and names the bottleneck."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from diagnose.analyze.findings import Finding
from diagnose.analyze.run.rules import answer, judge
from diagnose.commands.link import measure_here
from diagnose.commands.shared.arguments import add_job_options
from diagnose.commands.shared.keep import BROKEN, complain, keep_report, print_answer, with_label
from diagnose.commands.shared.progress import Progress
from diagnose.measure.run import measure_run, open_run, resumed
from diagnose.measure.session import Job, Session
from diagnose.measure.stages import INTERCONNECT, STAGE_KEYS
from diagnose.records.exit_codes import COULD_NOT_MEASURE, FINE, FOUND
from diagnose.records.header import WorkloadFacts
from diagnose.records.ranks import BandwidthRecord
from diagnose.records.run import RunRecord
from diagnose.render import store

MANUAL = """example:
  python -m diagnose run --workload my_job.py --label before"""
ALL_STAGES = (*STAGE_KEYS, INTERCONNECT)
# The whole job: a bottleneck around the backbone is what most people look for.
DEFAULT_WORKLOAD = "dgca"


def add_options(parser: argparse.ArgumentParser) -> None:
    add_job_options(parser, DEFAULT_WORKLOAD, "stage")
    parser.add_argument("--resume", action="store_true", help="go on after an interruption")
    parser.add_argument(
        "--fail-on",
        choices=("warning", "critical"),
        help="exit 1 on a finding of this severity, or on one that cannot be decided",
    )
    parser.add_argument(
        "--stages",
        nargs="+",
        choices=ALL_STAGES,
        default=ALL_STAGES,
        metavar="STAGE",
        help=f"run only these: {', '.join(ALL_STAGES)}",
    )


def run(arguments: argparse.Namespace) -> int:
    stages = [key for key in STAGE_KEYS if key in arguments.stages]
    with (
        Progress() as progress,
        Session.open(replace(read_job(arguments), copies=1), progress) as session,
        keep_report(arguments, _count) as keeper,
    ):
        record = open_run(session, stages)
        record = with_label(record, arguments.label, _label_parts(record, arguments))
        directory = arguments.reports / record.header.label
        keeper.lock(directory)
        record = _begin(record, directory, resume=arguments.resume)
        record = measure_run(session, record, keeper.save, arguments.timeout)
        keeper.finish(record)
    code = _conclude(record, arguments)
    if INTERCONNECT in arguments.stages:
        code = max(code, _measure_link(record, directory, arguments))
    return code


def read_job(arguments: argparse.Namespace) -> Job:
    return Job(
        workload=arguments.workload,
        size=arguments.size,
        device=arguments.device,
        data=arguments.data,
        model=arguments.model,
        effort=arguments.effort,
        seed=arguments.seed,
    )


def label_parts(workload: WorkloadFacts, arguments: argparse.Namespace) -> list[str]:
    """What of the options makes this another job than the workload as it comes."""
    parts = [workload.size] if arguments.size is not None else []
    parts += [Path(arguments.model).resolve().name] if arguments.model is not None else []
    parts += [Path(arguments.data).stem] if arguments.data is not None else []
    return parts


def _label_parts(record: RunRecord, arguments: argparse.Namespace) -> list[str]:
    parts = [record.workload.name]
    parts += label_parts(record.workload, arguments)
    parts += [] if set(STAGE_KEYS) <= set(arguments.stages) else arguments.stages
    return parts


def _begin(record: RunRecord, directory: Path, *, resume: bool) -> RunRecord:
    """Take up the interrupted run, or put the finished one aside."""
    path = directory / RunRecord.FILE_NAME
    if not path.exists():
        return record
    try:
        earlier = store.load(path, RunRecord)
    except store.StoreError as error:
        complain(f"{error}; it was moved to {store.quarantine(path).name}")
        return record
    if resume:
        return resumed(record, earlier)
    store.set_aside(path)
    return record


def _count(record: RunRecord) -> str:
    return f"{len(record.stages)} of {len(record.planned)} stages" if record.stages else ""


def _conclude(record: RunRecord, arguments: argparse.Namespace) -> int:
    findings = judge(record)
    text = answer(record, findings)
    summary = {
        "answer": text,
        "findings": [vars(finding) for finding in findings],
        "stages": {stage.key: stage.status for stage in record.stages},
    }
    print_answer(record, arguments, summary, text)
    broken = [stage for stage in record.stages if stage.status in BROKEN]
    for stage in broken:
        complain(f"stage {stage.key} {stage.status}: {stage.reason}")
    if broken:
        return COULD_NOT_MEASURE
    return FOUND if _gate_fails(findings, arguments.fail_on) else FINE


def _gate_fails(findings: Sequence[Finding], fail_on: str | None) -> bool:
    """What cannot be decided does not pass a gate either."""
    severe = {"warning": ("warning", "critical"), "critical": ("critical",)}.get(fail_on or "", ())
    return any(
        finding.severity in severe or (fail_on and finding.verdict == "cannot tell")
        for finding in findings
    )


def _measure_link(record: RunRecord, directory: Path, arguments: argparse.Namespace) -> int:
    """The last stage: all-reduces between two ranks of this machine, in a record of its own."""
    machine = record.header.machine
    if machine.device != "cpu" and len(machine.gpus) < 2:
        complain("interconnect: skipped, because an all-reduce needs two accelerators")
        return FINE
    path = directory / BandwidthRecord.FILE_NAME
    if arguments.resume and path.exists() and store.load(path, BandwidthRecord).complete:
        return FINE
    return measure_here(record.header, arguments.reports, quiet=arguments.json)
