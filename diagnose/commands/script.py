"""What does `script` do? Runs somebody's script, tries what would make it faster, and says it."""

from __future__ import annotations

import argparse
import contextlib
import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

from diagnose.commands.shared.arguments import add_number
from diagnose.commands.shared.verdict import (
    Output,
    add_script_arguments,
    add_verdict_options,
    open_header,
    warn_of_our_own_name,
)
from diagnose.measure.machine.torch_check import UnusableTorch, require_torch, torch_problem
from diagnose.measure.script.program import NoScript, read_program
from diagnose.measure.session import CouldNotOpen, Refused
from diagnose.records.exit_codes import INTERRUPTED
from diagnose.records.script import Options, ScriptRecord
from diagnose.render import store

MANUAL = """examples:
  python -m diagnose script train.py --lr 0.1
  python -m diagnose script --label my-model train.py
  torchrun --nproc-per-node=2 -m diagnose script --json why.json train.py"""


def add_options(parser: argparse.ArgumentParser) -> None:
    add_number(parser, "--steps", "stop after about so many steps")
    add_verdict_options(parser)
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
    Output(arguments)
    with contextlib.suppress(SyntaxError, ValueError):  # shown as Python shows it, by the run
        try:
            read_program(os.path.abspath(arguments.script))
        except NoScript as error:
            raise Refused(str(error)) from None
    return run_thrown_away(arguments)


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
    require_torch()
    # Imported here: it loads torch.
    from diagnose.measure.script.session import Session

    output = Output(arguments)
    script = Path(arguments.script)
    label = arguments.label or store.label_from_device_name(script.stem)
    warn_of_our_own_name(script)

    def conclude(record: ScriptRecord) -> None:
        with writing():
            output.write(record)

    try:
        session = Session(script, lambda: open_header(label), options, conclude)
        end = session.run(arguments.arguments)
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
