"""What can be asked? The command line, and what its exit codes mean.

0 fine · 1 a finding under --fail-on, or a report that is not what its data say · 2 wrong usage ·
3 something could not be measured · 130 interrupted
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from diagnose.analyze.findings import Finding
from diagnose.commands import batch_size as batch_size_command
from diagnose.commands import script as script_command
from diagnose.commands.keep import label_parts, measure_and_keep, read_job, write
from diagnose.commands.options import build_parser
from diagnose.commands.progress import Console
from diagnose.measure.optimize.optimizer import measure_optimize, open_optimize
from diagnose.measure.run import measure_run, open_run, resumed
from diagnose.measure.session import CouldNotOpen, Refused, Session
from diagnose.measure.stages import INTERCONNECT, STAGE_KEYS
from diagnose.records.experiments import OptimizeRecord
from diagnose.records.ranks import BandwidthRecord, ScalingRecord
from diagnose.records.run import RunRecord
from diagnose.render import store

FINE, FOUND, USAGE, COULD_NOT_MEASURE, INTERRUPTED = 0, 1, 2, 3, 130


def run(arguments: argparse.Namespace) -> int:
    if arguments.label is not None:
        store.validate_label(arguments.label)
    stages = [key for key in STAGE_KEYS if key in arguments.stages]
    with Console() as console, Session.open(read_job(arguments), console) as session:
        fresh = open_run(session, stages)
        label = arguments.label or _default_label(fresh, arguments)
        directory = arguments.reports / label
        with store.label_lock(directory):
            record = _begin(
                replace(fresh, header=replace(fresh.header, label=label)),
                directory,
                resume=arguments.resume,
            )
            measure = partial(measure_run, session, seconds=arguments.timeout)
            record = measure_and_keep(
                measure, record, directory, console, partial(_tell_interrupted, directory)
            )
    code = _conclude(record, directory, arguments)
    if INTERCONNECT in arguments.stages:
        code = max(code, _measure_link(record, directory, arguments))
    return code


def _measure_link(record: RunRecord, directory: Path, arguments: argparse.Namespace) -> int:
    """The last stage: all-reduces between two ranks of this machine, in a record of its own."""
    from diagnose.commands.link import measure_here

    if record.header.machine.device != "cpu" and len(record.header.machine.gpus) < 2:
        print(
            "interconnect: skipped, because an all-reduce needs two accelerators", file=sys.stderr
        )
        return FINE
    path = directory / store.BANDWIDTH_NAME
    if arguments.resume and path.exists() and store.load(path, BandwidthRecord).complete:
        return FINE
    return measure_here(
        label=record.header.label,
        reports=arguments.reports,
        device=record.header.machine.device,
        effort=record.header.effort,
        quiet=arguments.json,
    )


def _default_label(record: RunRecord, arguments: argparse.Namespace) -> str:
    """From the device, and from whatever else makes this run another experiment."""
    parts = [record.header.machine.device_name]
    if record.workload.name != "bert":
        parts.append(record.workload.name)
    parts += label_parts(record.workload, arguments)
    if not set(STAGE_KEYS) <= set(arguments.stages):
        parts += arguments.stages
    if record.header.effort == "smoke":
        parts.append(record.header.effort)
    return store.label_from_device_name(" ".join(parts))


def _begin(record: RunRecord, directory: Path, *, resume: bool) -> RunRecord:
    """Take up the interrupted run, or put the finished one aside."""
    path = directory / store.RECORD_NAME
    if not path.exists():
        return record
    try:
        earlier = store.load(path, RunRecord)
    except store.StoreError as error:
        moved = store.quarantine(path)
        print(f"diagnose: {error}; it was moved to {moved.name}", file=sys.stderr)
        return record
    if resume:
        return resumed(record, earlier)
    store.set_aside(path)
    return record


def _tell_interrupted(directory: Path, record: RunRecord) -> None:
    if record.stages:
        write(directory)
        print(
            f"diagnose: interrupted; {len(record.stages)} of {len(record.planned)} stages are in "
            f"{directory}, --resume goes on from there",
            file=sys.stderr,
        )


def _conclude(record: RunRecord, directory: Path, arguments: argparse.Namespace) -> int:
    from diagnose.analyze.run.rules import answer, judge

    findings = judge(record)
    if arguments.json:
        print(json.dumps(_summary(record, findings), ensure_ascii=False, indent=1))
    else:
        if record.header.effort == "smoke":
            print("This is no result: a smoke run takes too few steps to mean anything.")
        print(answer(record, findings))
        print(f"report: {directory / 'report.md'}")
    broken = [s for s in record.stages if s.status in ("failed", "hung", "invalid")]
    for stage in broken:
        print(f"diagnose: stage {stage.key} {stage.status}: {stage.reason}", file=sys.stderr)
    if broken:
        return COULD_NOT_MEASURE
    return FOUND if _gate_fails(findings, arguments.fail_on) else FINE


def _summary(record: RunRecord, findings: Sequence[Finding]) -> dict[str, object]:
    from diagnose.analyze.run.rules import answer

    return {
        "label": record.header.label,
        "answer": answer(record, findings),
        "findings": [vars(finding) for finding in findings],
        "stages": {stage.key: stage.status for stage in record.stages},
    }


def _gate_fails(findings: Sequence[Finding], fail_on: str | None) -> bool:
    """What cannot be decided does not pass a gate either."""
    severe = {"warning": ("warning", "critical"), "critical": ("critical",)}.get(fail_on or "", ())
    return any(
        finding.severity in severe or (fail_on and finding.verdict == "cannot tell")
        for finding in findings
    )


def optimize(arguments: argparse.Namespace) -> int:
    if arguments.label is not None:
        store.validate_label(arguments.label)
    with Console() as console, Session.open(read_job(arguments), console) as session:
        record = open_optimize(session, arguments.only)
        if arguments.samples is not None and not session.ready["evaluates"]:
            raise Refused(
                f"workload {record.workload.name} evaluates nothing, so --samples has no use; "
                "textgen and vqa do"
            )
        label = arguments.label or _optimize_label(record, arguments)
        record = replace(
            record, header=replace(record.header, label=label), samples=arguments.samples
        )
        directory = arguments.reports / label
        with store.label_lock(directory):
            measure = partial(measure_optimize, session, seconds=arguments.timeout)
            record = measure_and_keep(
                measure, record, directory, console, partial(_write_tried, directory)
            )
    return _conclude_optimize(record, directory, arguments)


def _write_tried(directory: Path, record: OptimizeRecord) -> None:
    if record.comparisons:
        write(directory)


def _optimize_label(record: OptimizeRecord, arguments: argparse.Namespace) -> str:
    parts = [record.header.machine.device_name, record.workload.name]
    parts += label_parts(record.workload, arguments)
    parts += arguments.only or []
    parts += ["smoke"] if record.header.effort == "smoke" else []
    return store.label_from_device_name(" ".join(parts))


def _conclude_optimize(
    record: OptimizeRecord, directory: Path, arguments: argparse.Namespace
) -> int:
    from diagnose.analyze.optimize.experiment import judge_all
    from diagnose.render.optimize.annotations import annotate
    from diagnose.render.optimize.report import answer as optimize_answer

    outcomes = judge_all(record)
    if arguments.annotations and record.maps:
        print(*annotate(record.maps[0]), sep="\n")
    if arguments.json:
        verdicts = [{"name": o.name, "verdict": o.verdict, "reason": o.reason} for o in outcomes]
        print(json.dumps({"label": record.header.label, "verdicts": verdicts}, indent=1))
    else:
        print(optimize_answer(record, outcomes))
        print(f"report: {directory / 'report.md'}")
    tried = (*record.comparisons, *record.rungs)
    broken = [each for each in tried if each.status in ("failed", "hung", "invalid")]
    for each in broken:
        print(f"diagnose: {each.key} {each.status}: {each.reason}", file=sys.stderr)
    return COULD_NOT_MEASURE if broken else FINE


def scale(arguments: argparse.Namespace) -> int:
    from diagnose.analyze.scaling.cluster import SimulationRefused, simulate_record
    from diagnose.render.scaling import render_scale

    directory = store.record_path(arguments.reports, arguments.label).parent
    record = store.load(directory / store.SCALING_NAME, ScalingRecord)
    try:
        print(render_scale(simulate_record(record, arguments.ranks, arguments.link)))
    except SimulationRefused as error:
        print(f"diagnose: {error}", file=sys.stderr)
        return COULD_NOT_MEASURE
    return FINE


def report(arguments: argparse.Namespace) -> int:
    from diagnose.render.check import find_reports, write_index, write_report

    named = [store.record_path(arguments.reports, label).parent for label in arguments.labels]
    for directory in named or find_reports(arguments.reports):
        print(write_report(directory))
    write_index(arguments.reports)
    return FINE


def check(arguments: argparse.Namespace) -> int:
    from diagnose.render.check import check as find_problems
    from diagnose.render.check import find_reports

    problems = find_problems(arguments.reports)
    for problem in problems:
        print(f"diagnose: {problem}", file=sys.stderr)
    if not problems:
        count = len(find_reports(arguments.reports))
        print(f"{count} report(s) are what their data render to")
    return FOUND if problems else FINE


def main(argv: Sequence[str] | None = None) -> int:
    verbs = {
        "run": run,
        "optimize": optimize,
        "batch-size": batch_size_command.run,
        "scale": scale,
        "script": script_command.run,
        "report": report,
        "check": check,
    }
    arguments = build_parser(verbs).parse_args(argv)
    # A polite kill ends like Ctrl-C: the child is reaped and what was measured is kept.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    action: Callable[[argparse.Namespace], int] = arguments.action
    try:
        code = action(arguments)
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        return INTERRUPTED
    except Refused as error:
        print(f"diagnose: {error}", file=sys.stderr)
        return USAGE
    except (CouldNotOpen, store.StoreError) as error:
        print(f"diagnose: {error}", file=sys.stderr)
        return USAGE if isinstance(error, store.LabelError) else COULD_NOT_MEASURE
    except OSError as error:
        # Standard output is full or closed: the files are written, only the words are lost.
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - until the process ends
        print(f"diagnose: cannot write the output: {error.strerror}", file=sys.stderr)
        return COULD_NOT_MEASURE


if __name__ == "__main__":
    sys.exit(main())
