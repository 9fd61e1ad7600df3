"""How does a verb begin and end? With words of the command line; an exit code, one sentence.

A verb is a module with MANUAL, `add_options(parser)` and `run(arguments)`; only the one that is
asked for is imported, so that --help loads neither torch nor pandas.
"""

from __future__ import annotations

import argparse
import importlib
import os
import signal
import sys
from collections.abc import Callable, Sequence

from diagnose.commands.shared.arguments import Parser, hyphenate, is_first_rank
from diagnose.commands.shared.keep import complain
from diagnose.measure.machine.torch_check import UnusableTorch
from diagnose.measure.ranks.job.rendezvous import NoRendezvous, Refusal
from diagnose.measure.session import CouldNotOpen, Refused
from diagnose.records.exit_codes import COULD_NOT_MEASURE, INTERRUPTED, USAGE
from diagnose.records.verbs import VERBS, Verb
from diagnose.render.store import LabelError, StoreError, validate_label
from diagnose.workload import WorkloadError

EXIT_CODES = """exit codes:
  0 fine, 1 a finding under --fail-... or a check that failed, 2 wrong usage,
  3 something could not be measured, 130 interrupted. torchrun turns every one
  that is not 0 into its own 1; the line to read begins with "diagnose:".
Options may be written with underscores too."""


def main(argv: Sequence[str] | None = None, action: str = "run") -> int:
    """`action` is the function of the verb that is run."""
    words = list(sys.argv[1:] if argv is None else argv)
    if words and (words[0] == "-m" or words[0].endswith(".py")):
        words.insert(0, "script")
    parser = Parser(
        prog="diagnose",
        description="Finds out why a PyTorch job is slow, and proves what fixes it.\n"
        "`diagnose train.py ...` is short for `diagnose script train.py ...`, and so is\n"
        "`diagnose -m package.train ...`.",
        epilog=EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    verbs = parser.add_subparsers(required=True, metavar="VERB")
    for verb in VERBS:
        added = verbs.add_parser(verb.name, help=verb.help, description=verb.help)
        if words[:1] == [verb.name]:
            _fill(added, verb, action)
            added.set_defaults(words=words)
    # Whatever follows a script is the script's own, and so is what follows `--`.
    if words[:1] in (["script"], ["watch"]):
        return command(parser.parse_args(words))
    end = words.index("--") if words[:1] == ["prove"] and "--" in words else len(words)
    theirs = argparse.Namespace(theirs=words[end + 1 :])
    return command(parser.parse_args(hyphenate(words[:end]), theirs))


def door(name: str, prog: str) -> int:
    """A file that is run for one verb alone: `torchrun diagnose/ddp_bandwidth.py`."""
    parser = Parser(prog=prog)
    _fill(parser, next(verb for verb in VERBS if verb.name == name))
    return command(parser.parse_args(hyphenate(sys.argv[1:])))


def _fill(parser: argparse.ArgumentParser, verb: Verb, action: str = "run") -> None:
    module = importlib.import_module(f"diagnose.commands.{verb.module}")
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.allow_abbrev = False
    parser.description = f"{verb.help}\n\n{module.MANUAL}"
    parser.epilog = EXIT_CODES
    parser.set_defaults(run=getattr(module, action))
    module.add_options(parser)


def command(arguments: argparse.Namespace) -> int:
    """Run the verb; whatever ends it early becomes one sentence and an exit code."""
    # A polite kill ends like Ctrl-C: the child is reaped and what was measured is kept.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    action: Callable[[argparse.Namespace], int] = arguments.run
    try:
        if getattr(arguments, "label", None) is not None:
            validate_label(arguments.label)
        code = action(arguments)
        sys.stdout.flush()
        return code
    except KeyboardInterrupt as error:
        complain(str(error) or "interrupted")
        return INTERRUPTED
    except (Refused, Refusal, WorkloadError, LabelError, UnusableTorch) as error:
        # The same on every rank.
        if is_first_rank():
            complain(str(error))
        return USAGE
    except (CouldNotOpen, NoRendezvous, StoreError) as error:
        complain(str(error))
        return COULD_NOT_MEASURE
    except OSError as error:
        # Standard output is full or closed: the files are written, only the words are lost.
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - until the process ends
        complain(f"cannot write the output: {error.strerror or error}")
        return COULD_NOT_MEASURE
