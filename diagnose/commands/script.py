"""What does `script` do? Runs somebody's script, tries what would make it faster, and says it."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

from diagnose.analyze.prove.proof import prove
from diagnose.analyze.script.again import join_runs
from diagnose.analyze.script.rules import diagnose
from diagnose.commands.prove import refuse_ranks
from diagnose.commands.shared.arguments import add_number, is_first_rank
from diagnose.commands.shared.keep import complain
from diagnose.commands.shared.progress import LiveLine, Progress
from diagnose.commands.shared.verdict import (
    Output,
    add_script_arguments,
    add_verdict_options,
    find_script,
    open_header,
    warn_of_our_own_name,
)
from diagnose.measure.machine.torch_check import UnusableTorch, require_torch, torch_problem
from diagnose.measure.script.program import NoScript, read_program
from diagnose.measure.session import CouldNotOpen, Refused
from diagnose.records import prove as prove_records
from diagnose.records.codec import dumps, from_dict
from diagnose.records.diagnosis import Option
from diagnose.records.exit_codes import INTERRUPTED
from diagnose.records.script import Options, ScriptRecord, TriedOption
from diagnose.render import store
from diagnose.render.prove.report import summarize as summarize_proof

# Where the process of a run hands its record to the one that started it.
RECORD = "DIAGNOSE_RECORD"

MANUAL = """examples:
  python -m diagnose script train.py --lr 0.1
  python -m diagnose script --label my-model train.py
  python -m diagnose script -m package.train --lr 0.1
  torchrun --nproc-per-node=2 -m diagnose script --json why.json train.py"""


def add_options(parser: argparse.ArgumentParser) -> None:
    add_number(parser, "--steps", "stop after about so many steps")
    add_verdict_options(parser)
    add_number(parser, "--again", "run the script so many times, for one verdict", default=1)
    parser.add_argument(
        "--options",
        action="store_true",
        help="then try what changes the numbers too, each in processes of its own (as `prove`)",
    )
    parser.add_argument(
        "--keep-files",
        action="store_true",
        help="leave new files of the run where they are; changed ones are put back all the same",
    )
    parser.add_argument(
        "--keep-trace", metavar="FILE", help="also keep a profiler's trace of some steps (.json.gz)"
    )
    add_script_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """A throw-away run: what is wrong is said before it, all else in a process of its own."""
    from diagnose.commands.shared.throwaway import run_thrown_away

    if problem := torch_problem():
        raise UnusableTorch(problem)
    if arguments.options:
        refuse_ranks("--options")
    Output(arguments)
    with contextlib.suppress(SyntaxError, ValueError):  # shown as Python shows it, by the run
        try:
            read_program(os.path.abspath(find_script(arguments)))
        except NoScript as error:
            raise Refused(str(error)) from None
    if not arguments.options and arguments.again == 1:
        return run_thrown_away(arguments)
    with tempfile.TemporaryDirectory(prefix="diagnose-") as folder:
        codes = []
        for number in range(arguments.again):
            file = os.environ[RECORD] = os.path.join(folder, f"{number}.json")
            codes.append(run_thrown_away(arguments))
            if codes[-1] == INTERRUPTED or not os.path.exists(file):
                break
        del os.environ[RECORD]
        files = sorted(Path(folder).iterdir())
        records = [from_dict(ScriptRecord, json.loads(each.read_bytes())) for each in files]
    if not records:
        return codes[-1]
    output = Output(arguments)
    record = records[0] if arguments.again == 1 else join_runs(records)
    if arguments.again > 1:
        output.tell(record)
    try:
        if arguments.options and INTERRUPTED not in codes:
            for tried in _try_options(arguments, diagnose(record).options):
                record = replace(record, tried_options=(*record.tried_options, tried))
    finally:
        output.save(record)
    return codes[-1] or output.code


def _try_options(arguments: argparse.Namespace, options: Sequence[Option]) -> Iterator[TriedOption]:
    """Each beside the unchanged script, by the engine of `prove`."""
    from diagnose.measure.prove.referee import try_options

    if not options:
        complain("there is no option to try")
        return
    if arguments.module:
        complain(f"options are tried of a script: name the file of {arguments.script} without -m")
        return
    names = {each.command.split()[-1]: each.what for each in options}
    limits, script = prove_records.Options(), arguments.script
    with Progress() as progress:
        tried = try_options(script, arguments.arguments, list(names), limits, progress.show)
        for change, record in tried:
            proof = prove(record)
            complain(f"{names[change]}:")
            print(summarize_proof(proof), file=sys.stderr)
            speed = proof.speed
            yield TriedOption(
                change,
                proof.sentence.replace(script, Path(script).name),
                speed.verdict,
                speed.ratio,
                speed.ratio_ci,
                proof.equality.text,
            )


def run_here(arguments: argparse.Namespace) -> int:
    """The run itself, in the process that was made for it."""
    from diagnose.measure.script.writers import Writers

    require_torch()
    options = Options(
        arguments.steps,
        arguments.seconds,
        arguments.warmup,
        keep_trace=os.path.abspath(arguments.keep_trace) if arguments.keep_trace else "",
    )
    # Never stopped: what the script does at its exit is seen too.
    ours = [*Output(arguments).places, *filter(None, [options.keep_trace])]
    writers = Writers(os.environ["DIAGNOSE_ASIDE"], ours)
    return run_script(arguments, options, writers.ours)


def run_script(
    arguments: argparse.Namespace,
    options: Options,
    writing: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext,
) -> int:
    """In this process; the exit code is the script's own if it has one.

    `writing` is entered to write the verdict.
    """
    # torch reads it once: its profiler would say on the script's stderr when it starts and stops.
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    require_torch()
    # Imported here: it loads torch.
    from diagnose.measure.script.session import Session

    output = Output(arguments)
    script = find_script(arguments)
    label = arguments.label or store.label_from_device_name(script.stem)
    warn_of_our_own_name(script)

    line = LiveLine(sys.stderr)
    show = line.show if line.is_shown and options.mode == "try" and is_first_rank() else None
    handed = os.environ.get(RECORD) if options.mode == "try" else None

    def conclude(record: ScriptRecord) -> None:
        line.clear()
        with writing():
            if not handed:
                output.write(record)
                return
            Path(handed).write_bytes(dumps(record))
            if arguments.again == 1:  # else the runs are told as one
                output.tell(record)

    try:
        session = Session(script, lambda: open_header(label), options, conclude, show)
        end = session.run(arguments.arguments, arguments.script if arguments.module else "")
    except NoScript as error:
        raise Refused(str(error)) from None
    except OSError as error:
        raise CouldNotOpen(str(error)) from None
    if end.frames:
        output.show(f"The error that may be this tool's doing:\n{end.frames}")
    if end.interrupted:
        return INTERRUPTED
    if options.mode == "watch" and not arguments.fail_on:
        return end.code  # whoever started the job waits for the job's own exit code
    return end.code or output.code
