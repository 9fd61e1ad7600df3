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
from pathlib import Path

from diagnose.console import Console
from diagnose.measure.runner import Runner, resumed
from diagnose.measure.stages import STAGE_KEYS
from diagnose.measure.supervisor import CouldNotOpen, Job, Refused
from diagnose.model import Finding, RunRecord
from diagnose.tell import store

FINE, FOUND, USAGE, COULD_NOT_MEASURE, INTERRUPTED = 0, 1, 2, 3, 130


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m diagnose",
        description="Finds out why a PyTorch job is slow, and proves what fixes it.",
    )
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    _add_run(verbs)
    _add_report(verbs)
    _add_check(verbs)
    return parser


def _add_verb(
    verbs: argparse._SubParsersAction[argparse.ArgumentParser],
    name: str,
    action: Callable[[argparse.Namespace], int],
    text: str,
    example: str,
) -> argparse.ArgumentParser:
    verb = verbs.add_parser(
        name,
        help=text,
        description=text,
        epilog=f"example:\n  {example}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    verb.set_defaults(action=action)
    verb.add_argument(
        "--reports",
        type=Path,
        default=Path("reports"),
        metavar="DIR",
        help="where reports live (default: reports)",
    )
    return verb


def _add_run(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    verb = _add_verb(
        verbs,
        "run",
        run,
        "Measure this machine stage by stage and write a report.",
        "python -m diagnose run --workload my_job.py --label before",
    )
    verb.add_argument("--workload", default="bert", help="a built-in one, or your .py file")
    verb.add_argument("--size", help="of the workload: bert has seed, small, tiny")
    verb.add_argument("--device", help="cpu, cuda, ... (default: the accelerator, else cpu)")
    verb.add_argument("--data", metavar="FILE", help="your own .tsv, .jsonl or .txt sentences")
    verb.add_argument(
        "--stages",
        nargs="+",
        choices=STAGE_KEYS,
        default=STAGE_KEYS,
        metavar="STAGE",
        help=f"only these: {', '.join(STAGE_KEYS)}",
    )
    effort = verb.add_mutually_exclusive_group()
    for name, text in (
        ("quick", "about two minutes (default on the CPU)"),
        ("full", "as long as the protocol asks (default on accelerators)"),
        ("smoke", "a few steps, to try the tool: its numbers mean nothing"),
    ):
        effort.add_argument(f"--{name}", dest="effort", action="store_const", const=name, help=text)
    verb.add_argument("--label", help="name of the report (default: from the device's name)")
    verb.add_argument("--resume", action="store_true", help="go on after an interruption")
    verb.add_argument(
        "--timeout", type=_positive, metavar="SECONDS", help="longest time for one stage"
    )
    verb.add_argument("--seed", type=_seed, default=0, help="of weights, data order and blocks")
    verb.add_argument("--json", action="store_true", help="print the findings as JSON")
    verb.add_argument(
        "--fail-on",
        choices=("warning", "critical"),
        help="exit 1 on a finding of this severity, or on one that cannot be decided",
    )


def _add_report(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    verb = _add_verb(
        verbs,
        "report",
        report,
        "Render reports again from their data. Needs no torch.",
        "python -m diagnose report",
    )
    verb.add_argument("labels", nargs="*", metavar="LABEL", help="(default: all)")


def _add_check(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    _add_verb(
        verbs,
        "check",
        check,
        "Fail if a report is not what its data render to. Needs no torch.",
        "python -m diagnose check",
    )


def _positive(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"'{text}' is not a positive number of seconds")
    return value


def _seed(text: str) -> int:
    if not text.isdecimal() or int(text) >= 2**63:
        raise argparse.ArgumentTypeError(f"'{text}' is not a number from 0 to 2**63 - 1")
    return int(text)


def run(arguments: argparse.Namespace) -> int:
    if arguments.label is not None:
        store.validate_label(arguments.label)
    with (
        Console() as console,
        Runner(_job(arguments), console, arguments.stages, arguments.timeout) as runner,
    ):
        fresh = runner.open()
        label = arguments.label or _default_label(fresh, arguments)
        directory = arguments.reports / label
        with store.label_lock(directory):
            record = _begin(replace(fresh, label=label), directory, resume=arguments.resume)
            kept = _Kept(record, directory)
            try:
                record = runner.measure(record, kept.save)
            except KeyboardInterrupt:
                console.stop()
                _tell_interrupted(kept)
                raise
            except store.StoreError:
                # The disk is the reader's to repair; what was measured must not be lost with it.
                print(kept.as_json(), file=sys.stderr)
                raise
            _write(arguments.reports, record)
    return _conclude(record, directory, arguments)


def _job(arguments: argparse.Namespace) -> Job:
    return Job(
        workload=arguments.workload,
        size=arguments.size,
        device=arguments.device,
        data=arguments.data,
        effort=arguments.effort,
        seed=arguments.seed,
    )


class _Kept:
    """The newest state of the run, on disk as far as the disk takes it."""

    def __init__(self, record: RunRecord, directory: Path) -> None:
        self.record = record
        self.directory = directory

    def save(self, record: RunRecord) -> None:
        self.record = record
        store.save(record, self.directory)

    def as_json(self) -> str:
        from diagnose.codec import dumps

        return dumps(self.record).decode()


def _default_label(record: RunRecord, arguments: argparse.Namespace) -> str:
    """From the device, and from whatever else makes this run another experiment."""
    parts = [record.machine.device_name]
    if record.workload.name != "bert":
        parts.append(record.workload.name)
    if arguments.size is not None:
        parts.append(record.workload.size)
    if arguments.data is not None:
        parts.append(Path(arguments.data).stem)
    if tuple(arguments.stages) != STAGE_KEYS:
        parts += arguments.stages
    if record.effort == "smoke":
        parts.append(record.effort)
    return store.label_from_device_name(" ".join(parts))


def _begin(record: RunRecord, directory: Path, *, resume: bool) -> RunRecord:
    """Take up the interrupted run, or put the finished one aside."""
    path = directory / store.RECORD_NAME
    if not path.exists():
        return record
    try:
        earlier = store.load(path)
    except store.StoreError as error:
        moved = store.quarantine(path)
        print(f"diagnose: {error}; it was moved to {moved.name}", file=sys.stderr)
        return record
    if resume:
        return resumed(record, earlier)
    store.set_aside(path)
    return record


def _write(reports: Path, record: RunRecord) -> None:
    from diagnose.tell.check import write_index, write_report

    write_report(reports / record.label, record)
    write_index(reports)


def _tell_interrupted(kept: _Kept) -> None:
    stages = kept.record.stages
    if stages:
        _write(kept.directory.parent, kept.record)
        print(
            f"diagnose: interrupted; {len(stages)} of {len(kept.record.planned)} stages are in "
            f"{kept.directory}, --resume goes on from there",
            file=sys.stderr,
        )


def _conclude(record: RunRecord, directory: Path, arguments: argparse.Namespace) -> int:
    from diagnose.tell.rules import answer, judge

    findings = judge(record)
    if arguments.json:
        print(json.dumps(_summary(record, findings), ensure_ascii=False, indent=1))
    else:
        if record.effort == "smoke":
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
    from diagnose.tell.rules import answer

    return {
        "label": record.label,
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


def report(arguments: argparse.Namespace) -> int:
    from diagnose.tell.check import write_index, write_report

    paths = [store.record_path(arguments.reports, label) for label in arguments.labels]
    for path in paths or store.find_records(arguments.reports):
        write_report(path.parent, store.load(path))
        print(path.parent / "report.md")
    write_index(arguments.reports)
    return FINE


def check(arguments: argparse.Namespace) -> int:
    from diagnose.tell.check import check as find_problems

    problems = find_problems(arguments.reports)
    for problem in problems:
        print(f"diagnose: {problem}", file=sys.stderr)
    if not problems:
        count = len(store.find_records(arguments.reports))
        print(f"{count} report(s) are what their data render to")
    return FOUND if problems else FINE


def main(argv: Sequence[str] | None = None) -> int:
    arguments = build_parser().parse_args(argv)
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
