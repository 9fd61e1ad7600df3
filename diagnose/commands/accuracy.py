"""How accurate is `python -m diagnose script`? Asked of scripts whose cause is known.

    make accuracy                             # every planted script, about an hour
    make accuracy ARGS="--only input sync"    # those with one of these in their name
    make accuracy ARGS="--resume"             # go on after Ctrl-C; nothing twice

The tool sees a script as a user would run it; what is true is measured apart from it, by timing
the script against its repaired twin in turns. Writes reports/<label>/accuracy.json with the
report and figure that are rendered from it; every script is saved as soon as it is judged.

Exit codes: 0 every goal is met, 1 one is missed, 2 wrong usage, 3 a script could not be
diagnosed or timed, 130 interrupted.
"""

from __future__ import annotations

import argparse
import json
import math
import shlex
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path

from diagnose.analyze.accuracy import Judged, answer, goals, judge
from diagnose.commands.entry import Progress, describe_machine, positive, whole_and_positive
from diagnose.commands.keep import write
from diagnose.measure.jobs import ROOT, import_from_clone
from diagnose.measure.process import Hung
from diagnose.measure.ranks.job.ends import COULD_NOT_MEASURE, FINE, INTERRUPTED, USAGE
from diagnose.measure.twins.cases import DIRECTORY, REPAIR, Case, find_lines, fixed_script
from diagnose.measure.twins.timing import CouldNotTime, start_python, time_twins
from diagnose.measure.words import one_sentence, without_paths
from diagnose.records import codec
from diagnose.records.accuracy import (
    AccuracyRecord,
    Answer,
    CaseResult,
    PlantedCulprit,
    Said,
    Twins,
)
from diagnose.records.header import Header, Reading
from diagnose.records.script import Diagnosis, ScriptFinding
from diagnose.records.stats import FEWEST_FOR_INTERVAL
from diagnose.render import store

MISSED = 1
LABEL = "accuracy"
TOOL = "-m diagnose script"
BLOCKS = 8
# Less than the tool takes by default: what is right in this time is right in more.
TOOL_SECONDS = 45.0
TIMEOUT_SECONDS = 240.0
# What the longest step of a planted script could take on a slow machine, its imports included.
STEP_SECONDS = 30.0
# A script that grows gets slower with every step, so its twin is timed over the steps that the
# tool saw; beyond so many blocks the answer would not change.
MOST_BLOCKS = 40


def main(argv: Sequence[str] | None = None) -> int:
    arguments = _build_parser().parse_args(argv)
    # A polite kill ends like Ctrl-C: nothing keeps running, and what was judged is kept.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        cases = _choose(arguments.only)
        label = arguments.label or _default_label(arguments.only)
        directory = arguments.reports / store.validate_label(label)
        with store.label_lock(directory):
            record = _begin(_open(label, arguments, cases), directory, resume=arguments.resume)
            record = _run(record, cases, arguments, directory)
        return _conclude(record, directory)
    except KeyboardInterrupt:
        return INTERRUPTED
    except _Refused as error:
        print(f"diagnose: {error}", file=sys.stderr)
        return USAGE
    except store.StoreError as error:
        print(f"diagnose: {error}", file=sys.stderr)
        return USAGE if isinstance(error, store.LabelError) else COULD_NOT_MEASURE


class _Refused(Exception):
    """The request makes no sense; the message says why and what to do."""


def _build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m diagnose.commands.accuracy",
        description="Judge the diagnosis of scripts on scripts whose cause is known.",
    )
    parser.add_argument(
        "--only", nargs="+", default=[], metavar="PART", help="scripts with one of these in a name"
    )
    parser.add_argument("--resume", action="store_true", help="go on after an interruption")
    parser.add_argument("--label", help=f"name of the report (default: {LABEL}, and the parts)")
    parser.add_argument(
        "--reports", type=Path, default=Path("reports"), metavar="DIR", help="(default: reports)"
    )
    parser.add_argument(
        "--tool",
        default=TOOL,
        metavar="WORDS",
        help=f"what Python runs to diagnose a script (default: {TOOL})",
    )
    parser.add_argument(
        "--seconds",
        type=positive,
        default=TOOL_SECONDS,
        help=f"that the tool may watch a script (default: {TOOL_SECONDS:g})",
    )
    parser.add_argument(
        "--timeout",
        type=positive,
        default=TIMEOUT_SECONDS,
        metavar="SECONDS",
        help=f"after which the tool is ended (default: {TIMEOUT_SECONDS:g})",
    )
    parser.add_argument(
        "--blocks",
        type=whole_and_positive,
        default=BLOCKS,
        metavar="N",
        help=f"pairs of blocks that time the twins (default: {BLOCKS}; below "
        f"{FEWEST_FOR_INTERVAL} there is no interval, and no result)",
    )
    return parser


def _choose(parts: Sequence[str]) -> list[Case]:
    planted: tuple[Case, ...] = import_from_clone("bench.planted.truth").CASES
    unknown = [part for part in parts if not any(part in case.name for case in planted)]
    if unknown:
        names = ", ".join(case.name for case in planted)
        raise _Refused(f"no planted script has {unknown[0]!r} in its name; there are {names}")
    return [case for case in planted if not parts or any(part in case.name for part in parts)]


def _default_label(parts: Sequence[str]) -> str:
    return store.label_from_device_name(" ".join([LABEL, *parts]))


def _open(label: str, arguments: argparse.Namespace, cases: Sequence[Case]) -> AccuracyRecord:
    from diagnose.measure.machine.describe import probe

    # The planted scripts run on the CPU wherever they are, so that everybody can check them.
    ready = {"identities": [], "machine": codec.to_dict(probe("cpu")), "is_fake": False}
    # As it would come from a measuring process: lists, not tuples.
    machine, source = describe_machine(json.loads(json.dumps(ready)))
    return AccuracyRecord(
        header=Header(
            label=label,
            created=datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
            source=source,
            effort="full" if arguments.blocks >= FEWEST_FOR_INTERVAL else "smoke",
            machine=machine,
        ),
        tool=without_paths(f"python {arguments.tool} --seconds {arguments.seconds:g}"),
        planned=tuple(case.name for case in cases),
    )


def _begin(fresh: AccuracyRecord, directory: Path, *, resume: bool) -> AccuracyRecord:
    """Take up the interrupted run, without the scripts that failed in it."""
    path = directory / store.ACCURACY_NAME
    if not (resume and path.exists()):
        return fresh
    earlier = store.load(path, AccuracyRecord)
    for name in ("tool", "tool_version", "method", "effort"):
        before, now = getattr(earlier, name), getattr(fresh, name)
        if before != now:
            raise _Refused(
                f"{path} cannot be resumed: its {name} is {before!r}, now it is {now!r}; "
                "leave out --resume to begin again"
            )
    kept = tuple(
        each for each in earlier.cases if each.name in fresh.planned and not _complaints(each)
    )
    return replace(fresh, cases=kept)


def _run(
    record: AccuracyRecord, cases: Sequence[Case], arguments: argparse.Namespace, directory: Path
) -> AccuracyRecord:
    progress = Progress()
    done = {each.name: each for each in record.cases}
    try:
        for place, case in enumerate(cases):
            progress.advance(place, len(cases))
            if case.name in done:
                continue
            progress.show(case.name)
            done[case.name] = measure_case(case, arguments)
            record = replace(record, cases=tuple(done[c.name] for c in cases if c.name in done))
            store.save(record, directory)
            progress.clear()
            print(_line(done[case.name]), file=sys.stderr)
    except KeyboardInterrupt:
        progress.clear()
        if record.cases:
            # It may have come between a result and its saving.
            store.save(record, directory)
            write(directory)
            print(
                f"diagnose: interrupted; {len(record.cases)} of {len(cases)} scripts are in "
                f"{directory}, --resume goes on from there",
                file=sys.stderr,
            )
        raise
    except store.StoreError:
        # The disk is the reader's to repair; what was measured must not be lost with it.
        print(codec.dumps(record).decode(), file=sys.stderr)
        raise
    record = replace(record, complete=True)
    store.save(record, directory)
    write(directory)
    return record


def measure_case(case: Case, arguments: argparse.Namespace) -> CaseResult:
    """What the tool says of the script, and what its repair gives back."""
    culprits = tuple(
        PlantedCulprit(each.cause, each.file, find_lines(case, each)) for each in case.culprits
    )
    begin = time.monotonic()
    said = ask_tool(case, shlex.split(arguments.tool), arguments.seconds, arguments.timeout)
    seconds = time.monotonic() - begin
    given = said if isinstance(said, Answer) else None
    twins = _time(case, given, arguments.blocks)
    return CaseResult(
        name=case.name,
        culprits=culprits,
        answer=given,
        answer_reason=said if isinstance(said, str) else "",
        twins=twins if isinstance(twins, Twins) else None,
        twins_reason=twins if isinstance(twins, str) else "",
        seconds=seconds,
        unseen=case.unseen,
    )


def ask_tool(case: Case, tool: Sequence[str], seconds: float, timeout: float) -> Answer | str:
    """The tool's answer, or one sentence that says why there is none."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "answer.json")
        words = [*tool, "--json", str(path), "--seconds", f"{seconds:g}", str(case.slow)]
        with start_python(words, case.ranks) as process:
            try:
                process.wait(timeout)
            except Hung:
                return f"no answer after {timeout:g} s"
            ending = process.describe_end()
        try:
            return read_answer(path.read_text(encoding="utf-8"), case)
        except OSError:
            return f"the tool {ending} and wrote no answer"
        except ValueError as error:
            return f"the tool wrote an answer that cannot be read: {one_sentence(str(error))}"


def read_answer(text: str, case: Case) -> Answer:
    """The part of the tool's JSON that can be right or wrong, in seconds."""
    diagnosis = codec.from_dict(Diagnosis, json.loads(text), "answer")
    step, overhead = diagnosis.step_ms, diagnosis.overhead.get("share")
    return Answer(
        sentence=without_paths(diagnosis.sentence),
        steps=diagnosis.steps,
        step_seconds=Reading(step.median / 1e3 if step else None, "" if step else "no plain step"),
        overhead_share=Reading(overhead, "" if overhead is not None else "the tool did not say"),
        findings=tuple(_read_finding(each, case) for each in diagnosis.findings),
    )


def _read_finding(finding: ScriptFinding, case: Case) -> Said:
    low, high = finding.gain_ci
    return Said(
        cause=finding.cause,
        file=_inside(finding.file, case),
        line=finding.line,
        gain_seconds=finding.gain_ms / 1e3,
        gain_low=low / 1e3,
        gain_high=high / 1e3,
        share=finding.share,
        verified=finding.verified,
    )


def _inside(file: str, case: Case) -> str:
    """The path from the script's own directory; of any other file only the name."""
    path, home = (ROOT / file).resolve(), case.directory.resolve()
    return path.relative_to(home).as_posix() if path.is_relative_to(home) else path.name


def _time(case: Case, said: Answer | None, blocks: int) -> Twins | str:
    if not case.repair.exists():
        return "there is nothing to repair"
    if said is not None and "growth" in case.causes:
        covered = math.ceil(said.steps / (case.block_steps + case.settle_steps))
        blocks = max(blocks, min(MOST_BLOCKS, covered))
    try:
        with tempfile.TemporaryDirectory() as folder:
            slow, fixed = time_twins(
                [case.slow, fixed_script(case, Path(folder))],
                ranks=case.ranks,
                blocks=blocks,
                block_steps=case.block_steps,
                settle_steps=case.settle_steps,
                step_seconds=STEP_SECONDS,
            )
    except CouldNotTime as error:
        return f"the twins were not timed: {error}"
    return Twins(tuple(slow), tuple(fixed), case.fixed_work, case.block_steps)


def _complaints(result: CaseResult) -> list[str]:
    """What could not be measured of a case; a healthy script need not have a twin."""
    missing = [result.answer_reason] if result.answer is None else []
    if result.twins is None and (DIRECTORY / result.name / REPAIR).exists():
        missing.append(result.twins_reason)
    return missing


def _line(result: CaseResult) -> str:
    judged = Judged(result)
    real = "" if judged.real is None else f", real gain {judged.real.center * 1e3:.1f} ms"
    promised = f", promised {judged.promised_seconds * 1e3:.1f} ms" if result.culprits else ""
    return f"{result.name}: {judged.true_cause}, said {judged.said_cause}{promised}{real}"


def _conclude(record: AccuracyRecord, directory: Path) -> int:
    print(answer(record))
    print(f"report: {directory / 'report.md'}")
    broken = [(each.name, text) for each in record.cases for text in _complaints(each)]
    for name, text in broken:
        print(f"diagnose: {name}: {text}", file=sys.stderr)
    reached = goals(judge(record))
    missed = [goal for goal in reached if goal.met is False]
    for goal in missed:
        print(f"diagnose: goal missed: {goal.name}, {goal.wanted}", file=sys.stderr)
    if all(goal.met is None for goal in reached):
        print("diagnose: no script proves anything on this machine", file=sys.stderr)
        return COULD_NOT_MEASURE
    if broken:
        return COULD_NOT_MEASURE
    return MISSED if missed else FINE


if __name__ == "__main__":
    sys.exit(main())
