"""How accurate is `script`? Asked of scripts whose cause is known."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from diagnose.analyze.accuracy import Judged, answer, goals, judge
from diagnose.commands.shared.arguments import add_number, add_reports_option, add_seconds
from diagnose.commands.shared.keep import complain, keep_report, print_answer
from diagnose.commands.shared.progress import Progress
from diagnose.measure.accuracy import (
    describe_here,
    find_complaints,
    find_simulated,
    measure_case,
    measure_simulated,
)
from diagnose.measure.jobs import import_from_clone
from diagnose.measure.session import Refused
from diagnose.measure.twins.cases import Case
from diagnose.measure.words import without_paths
from diagnose.records.accuracy import AccuracyRecord, CaseResult
from diagnose.records.exit_codes import COULD_NOT_MEASURE, FINE, FOUND
from diagnose.records.stats import FEWEST_FOR_INTERVAL
from diagnose.render import store

MANUAL = """\
  python -m diagnose accuracy                      # every planted script, about an hour
  python -m diagnose accuracy --only input sync    # those with one of these in their name
  python -m diagnose accuracy --short 12           # scripts that end by themselves after 12 s
  python -m diagnose accuracy --simulated          # on a simulated GPU: docs/gpu.md
  make accuracy ARGS="--resume"                    # go on after Ctrl-C; nothing twice

The tool sees a script as a user would run it; what is true is measured apart from it, by timing
the script against its repaired twin in turns. Writes reports/<label>/accuracy.json with the
report and figure that are rendered from it; every script is saved as soon as it is judged.
Exits with 1 if a goal is missed."""
LABEL = "accuracy"
TOOL = "-m diagnose script"
BLOCKS = 8
# Less than the tool takes by default: what is right in this time is right in more.
TOOL_SECONDS = 45.0
TIMEOUT_SECONDS = 240.0


def add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--only",
        nargs="+",
        default=[],
        metavar="PART",
        help="only scripts with one of these in their name",
    )
    add(
        "--simulated",
        action="store_true",
        help="scripts for a simulated GPU instead, which must be on PYTHONPATH (docs/gpu.md)",
    )
    add("--resume", action="store_true", help="go on after an interruption")
    add("--label", help=f"name of the report (default: {LABEL}, and the parts)")
    add_reports_option(parser)
    add("--json", action="store_true", help="print the answer and the goals as JSON")
    add(
        "--tool",
        default=TOOL,
        metavar="WORDS",
        help=f"what Python runs to diagnose a script (default: {TOOL})",
    )
    add_seconds(parser, "--seconds", "time budget of the tool for one script", TOOL_SECONDS)
    short = "let every script end by itself after about so long"
    add_seconds(parser, "--short", short, None)
    add_seconds(parser, "--timeout", "time limit after which the tool is stopped", TIMEOUT_SECONDS)
    blocks = f"pairs of blocks that time the twins; fewer than {FEWEST_FOR_INTERVAL} prove nothing"
    add_number(parser, "--blocks", blocks, default=BLOCKS)


def run(arguments: argparse.Namespace) -> int:
    if arguments.simulated and arguments.short:
        raise Refused("--short is for scripts of this machine: leave out --simulated")
    cases, tool = _choose(arguments), shlex.split(arguments.tool)
    kind = ["simulated"] if arguments.simulated else ["short"] if arguments.short else []
    label = arguments.label or store.label_from_device_name(
        " ".join([LABEL, *kind, *arguments.only])
    )
    directory = arguments.reports / label
    with Progress() as progress, keep_report(arguments, _count) as keeper:
        keeper.lock(directory)
        record = _begin(_open(label, arguments, cases), directory, resume=arguments.resume)
        keeper.record = record
        for place, case in enumerate(cases):
            progress.advance(place, len(cases))
            if case.name not in {each.name for each in record.cases}:
                progress.show(case.name)
                limits = arguments.seconds, arguments.timeout
                if isinstance(case, Case):
                    made = measure_case(case, tool, *limits, arguments.blocks, arguments.short)
                else:
                    made = measure_simulated(case, tool, *limits)
                record = _with_case(record, made)
                keeper.save(record)
                progress.say(_line(made))
        record = replace(record, complete=True)
        keeper.finish(record)
    return _conclude(record, arguments)


def _choose(arguments: argparse.Namespace) -> list[Any]:
    """Each with a name: scripts for this machine, or for a simulated device."""
    parts = arguments.only
    if arguments.simulated:
        planted = find_simulated()
    else:
        planted = import_from_clone("bench.planted.truth", "planted scripts").CASES
    unknown = [part for part in parts if not any(part in case.name for case in planted)]
    if unknown:
        names = ", ".join(case.name for case in planted)
        raise Refused(f"no planted script has {unknown[0]!r} in its name; there are {names}")
    return [case for case in planted if not parts or any(part in case.name for part in parts)]


def _open(label: str, arguments: argparse.Namespace, cases: Sequence[Any]) -> AccuracyRecord:
    effort = "full" if arguments.blocks >= FEWEST_FOR_INTERVAL else "smoke"
    return AccuracyRecord(
        header=replace(describe_here(effort, simulated=arguments.simulated), label=label),
        tool=without_paths(f"python {arguments.tool} --seconds {arguments.seconds:g}"),
        script_seconds=arguments.short,
        planned=tuple(case.name for case in cases),
    )


def _begin(fresh: AccuracyRecord, directory: Path, *, resume: bool) -> AccuracyRecord:
    """Take up the interrupted run, without the scripts that failed in it."""
    path = directory / AccuracyRecord.FILE_NAME
    if not (resume and path.exists()):
        return fresh
    earlier = store.load(path, AccuracyRecord)
    for name, before, now in (
        ("tool", earlier.tool, fresh.tool),
        ("length of scripts", earlier.script_seconds, fresh.script_seconds),
        ("tool version", earlier.header.tool_version, fresh.header.tool_version),
        ("method", earlier.header.method, fresh.header.method),
        ("effort", earlier.header.effort, fresh.header.effort),
    ):
        if before != now:
            raise Refused(
                f"{path} cannot be resumed: its {name} is {before!r}, now it is {now!r}; "
                "leave out --resume to begin again"
            )
    kept = [
        each for each in earlier.cases if each.name in fresh.planned and not find_complaints(each)
    ]
    return replace(fresh, cases=tuple(kept))


def _with_case(record: AccuracyRecord, made: CaseResult) -> AccuracyRecord:
    """Scripts stay in their order, whichever of them were taken over."""
    cases = sorted((*record.cases, made), key=lambda each: record.planned.index(each.name))
    return replace(record, cases=tuple(cases))


def _count(record: AccuracyRecord) -> str:
    return f"{len(record.cases)} of {len(record.planned)} scripts" if record.cases else ""


def _line(result: CaseResult) -> str:
    judged = Judged(result)
    real = "" if judged.real is None else f", real gain {judged.real.center * 1e3:.1f} ms"
    promised = f", promised {judged.promised_seconds * 1e3:.1f} ms" if result.culprits else ""
    return f"{result.name}: {judged.true_cause}, said {judged.said_cause}{promised}{real}"


def _conclude(record: AccuracyRecord, arguments: argparse.Namespace) -> int:
    reached = goals(judge(record), is_short=record.is_short)
    met = {goal.name: goal.met for goal in reached}
    text = answer(record)
    print_answer(record, arguments, {"answer": text, "goals": met}, text)
    broken = [(each.name, why) for each in record.cases for why in find_complaints(each)]
    for name, why in broken:
        complain(f"{name}: {why}")
    missed = [goal for goal in reached if goal.met is False]
    for goal in missed:
        complain(f"goal missed: {goal.name}, {goal.wanted}")
    if all(goal.met is None for goal in reached):
        complain("no script proves anything on this machine")
        return COULD_NOT_MEASURE
    if broken:
        return COULD_NOT_MEASURE
    return FOUND if missed else FINE
