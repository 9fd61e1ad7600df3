"""What does `prove` do? Referees a change: is it faster, and does it still compute the same?"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

from diagnose.analyze.prove.proof import prove
from diagnose.analyze.prove.speed import gate
from diagnose.commands.shared.arguments import add_number, add_reports_option, add_seconds, between
from diagnose.commands.shared.keep import complain, write_report, write_text
from diagnose.commands.shared.progress import Progress
from diagnose.commands.shared.restored import LEFT_OVER, tell_restored
from diagnose.measure.machine.torch_check import require_torch
from diagnose.measure.prove.sides import Request, open_sides
from diagnose.measure.session import Refused
from diagnose.records.codec import dumps
from diagnose.records.exit_codes import COULD_NOT_MEASURE, FINE, FOUND, INTERRUPTED
from diagnose.records.prove import (
    CHANGES,
    DEFAULT_EQUAL_STEPS,
    DEFAULT_SECONDS,
    DEFAULT_TIMEOUT,
    Options,
    Proof,
    ProveRecord,
    without_paths,
)
from diagnose.render import store
from diagnose.render.prove.report import annotate, outputs, summarize

MANUAL = """examples:
  python -m diagnose prove main HEAD -- train.py --epochs 1
  python -m diagnose prove before.py after.py
  python -m diagnose prove train.py --with compile

Whatever follows `--` is the script's own; of two commits it begins with the script. Each side runs
in a copy of the tracked files; data that git does not track is linked in. The ratio is the time
before by the time after: above 1 the change saves time.

changes with a name:
""" + "\n".join(f"  {name:14} {what}" for name, what in CHANGES.items())


def add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("sides", nargs="+", metavar="SIDE", help="two commits, two .py files, or one .py file")
    add("--with", dest="change", choices=CHANGES, metavar="NAME", help="of one file: this change")
    add_seconds(parser, "--seconds", "longest time for the blocks", DEFAULT_SECONDS)
    equal = "steps whose results are compared"
    add_number(parser, "--equal-steps", equal, default=DEFAULT_EQUAL_STEPS)
    patience = "longest time to the first step, and for a turn"
    add_seconds(parser, "--timeout", patience, DEFAULT_TIMEOUT)
    add(
        "--fail-if-slower",
        type=_share,
        metavar="2%",
        help="exit 1 if it is slower by more than this, 3 if that is not proven",
    )
    add("--fail-if-diverges", action="store_true", help="exit 1 unless the results are equal")
    add("--label", help="keep the record and write a report to DIR/LABEL (default: only print)")
    add_reports_option(parser)
    add("--json", metavar="FILE", help="write the proof there; - is standard output")
    add(
        "--github",
        action="store_true",
        help="write the job's summary and outputs, and warn on a line that got slower",
    )


def _share(text: str) -> float:
    """2% or 0.02."""
    whole = text.removesuffix("%")
    value = between(whole, -1e-9, 100 if text.endswith("%") else 1, "a share such as 2%")
    return max(0.0, value / 100 if text.endswith("%") else value)


def run(arguments: argparse.Namespace) -> int:
    refuse_ranks("prove")
    request = read_request(arguments.sides, arguments.theirs, arguments.change)
    file = _json_file(arguments.json)
    require_torch()
    # Imported here: it loads torch.
    from diagnose.measure.prove.referee import Referee

    options = Options(
        arguments.seconds, arguments.equal_steps, arguments.timeout, arguments.fail_if_slower
    )
    interrupted = False
    with Progress() as progress, open_sides(request) as sides:
        referee = Referee(sides, options, progress.show)
        try:
            referee.run()
        except KeyboardInterrupt:
            interrupted = True
    if sides.left_over:
        tell_restored(sides.left_over, LEFT_OVER)
    for each in sides.restored:
        tell_restored(each)
    record = referee.record
    if interrupted:
        record = replace(record, missing="it was interrupted")
    problems = [each.problem for each in sides.restored if each.problem]
    proof = prove(record)
    is_written = _tell(proof, arguments, file)
    if arguments.label is not None:
        _keep(record, arguments)
    if interrupted:
        complain("interrupted; this is what was known by then")
        return INTERRUPTED
    code = _conclude(record, proof, arguments)
    return COULD_NOT_MEASURE if problems or not is_written else code


def refuse_ranks(who: str) -> None:
    if int(os.environ.get("WORLD_SIZE", "1") or "1") > 1:
        raise Refused(
            f"{who} compares one process with one process: start it without torchrun or srun, on a "
            "script that runs alone"
        )


def read_request(sides: Sequence[str], theirs: Sequence[str], change: str | None) -> Request:
    files = [each for each in sides if each.endswith(".py")]
    if change is not None:
        if len(sides) != 1 or not files:
            raise Refused("--with takes one script: diagnose prove train.py --with NAME")
        return Request(tuple(sides), arguments=tuple(theirs), change=change)
    if len(sides) != 2 or len(files) == 1:
        raise Refused("name two commits, two .py files, or one .py file and --with NAME")
    if files:
        return Request(tuple(sides), arguments=tuple(theirs))
    if not theirs:
        raise Refused("name the script: diagnose prove main HEAD -- train.py")
    return Request(tuple(sides), theirs[0], tuple(theirs[1:]))


def _json_file(name: str | None) -> Path | None:
    if name in (None, "-"):
        return None
    file = Path(name or "")
    if file.suffix == ".py":
        raise Refused(f"--json would overwrite {file.name}; name another file")
    if not file.absolute().parent.is_dir():
        raise Refused(f"--json: there is no directory {file.parent}")
    return file


def _tell(proof: Proof, arguments: argparse.Namespace, file: Path | None) -> bool:
    """Whether the file could be written; the answer is printed before it."""
    text = json.dumps(asdict(proof), ensure_ascii=False, indent=1)
    shown = summarize(proof)
    print(text if arguments.json == "-" else shown, flush=True)
    is_written = file is None or write_text(file, text)
    if arguments.github:
        for line in annotate(proof):
            print(line, file=sys.stderr if arguments.json == "-" else sys.stdout, flush=True)
        _append("GITHUB_STEP_SUMMARY", shown)
        _append("GITHUB_OUTPUT", "\n".join(f"{k}={v}" for k, v in outputs(proof).items()))
    return is_written


def _append(variable: str, text: str) -> None:
    """To the file that the runner named; elsewhere there is none."""
    name = os.environ.get(variable)
    if name:
        with open(name, "a", encoding="utf-8") as file:
            file.write(text + "\n")


def _keep(record: ProveRecord, arguments: argparse.Namespace) -> None:
    directory = arguments.reports / arguments.label
    header = replace(record.header, label=arguments.label)
    kept = without_paths(replace(record, header=header))
    try:
        with store.label_lock(directory):
            store.save(kept, directory)
            write_report(directory)
    except store.StoreError:
        # The disk is the reader's to repair; what was measured must not be lost with it.
        print(dumps(kept).decode(), file=sys.stderr)
        raise
    print(f"report: {directory / 'report.md'}", file=sys.stderr, flush=True)


def _conclude(record: ProveRecord, proof: Proof, arguments: argparse.Namespace) -> int:
    if record.missing:
        complain(record.missing)
    asked = arguments.fail_if_slower is not None or arguments.fail_if_diverges
    if asked:
        passed = gate(record, arguments.fail_if_slower, diverges=arguments.fail_if_diverges)
        if passed is False:
            return FOUND
        if passed is None:
            complain("the gate is not passed: what it asks is not proven")
            return COULD_NOT_MEASURE
    return COULD_NOT_MEASURE if record.missing else FINE
