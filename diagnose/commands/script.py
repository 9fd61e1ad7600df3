"""What does `script` do? Runs somebody's script unchanged and says why it is slow."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path

from diagnose.analyze.script.rules import diagnose
from diagnose.commands.arguments import add_number, add_seconds
from diagnose.measure.session import CouldNotOpen, Refused
from diagnose.records.exit_codes import COULD_NOT_MEASURE, FINE, INTERRUPTED
from diagnose.records.script import DEFAULT_SECONDS, DEFAULT_WARMUP, ScriptRecord, Wanted
from diagnose.render.script import summarize

MANUAL = """examples:
  python -m diagnose script train.py --lr 0.1
  torchrun --nproc-per-node=2 -m diagnose script --json why.json train.py"""


def add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    budget = "time budget in seconds; up to a fifth may pass before the first step"
    add_seconds(parser, "--seconds", budget, DEFAULT_SECONDS)
    add_number(parser, "--steps", "stop after about so many steps")
    add_number(parser, "--warmup", "steps before anything is timed", default=DEFAULT_WARMUP)
    add("--json", metavar="FILE", help="write the findings there too; - is standard output")
    add(
        "--keep-running",
        action="store_true",
        help="let the script go on after the verdict; nothing is changed in it then",
    )
    add(
        "--no-interventions",
        dest="interventions",
        action="store_false",
        help="only watch: every gain is an estimate then",
    )
    add("script", metavar="SCRIPT", help="your .py file")
    add("arguments", nargs=argparse.REMAINDER, metavar="...", help="its own arguments")


def run(arguments: argparse.Namespace) -> int:
    # Imported here: it loads torch.
    from diagnose.measure.script.watch.program import NoScript
    from diagnose.measure.script.watch.session import Session

    wanted = Wanted(
        arguments.steps,
        arguments.seconds,
        arguments.warmup,
        arguments.interventions,
        arguments.keep_running,
    )
    printer = _Printer(arguments.json)
    try:
        end = Session(Path(arguments.script), wanted, printer.show).run(arguments.arguments)
    except NoScript as error:
        raise Refused(str(error)) from None
    except OSError as error:
        raise CouldNotOpen(str(error)) from None
    if end.interrupted:
        return INTERRUPTED
    return end.code or printer.code


class _Printer:
    """Shows what was found, once; the script's own output stays as it was."""

    def __init__(self, json_to: str | None) -> None:
        self.code = FINE
        # The script may put others in their place.
        self._out, self._err = sys.stdout, sys.stderr
        self._to_stdout = json_to == "-"
        # The script may change the directory.
        self._file = None if json_to in (None, "-") else Path(str(json_to)).absolute()
        if self._file is not None and self._file.suffix == ".py":
            raise Refused(f"--json would overwrite {self._file.name}; name another file before it")
        if self._file is not None and not self._file.parent.is_dir():
            raise Refused(f"--json: there is no directory {self._file.parent}")

    def show(self, record: ScriptRecord) -> None:
        diagnosis = diagnose(record)
        self.code = FINE if diagnosis.findings else COULD_NOT_MEASURE
        text = json.dumps(asdict(diagnosis), ensure_ascii=False, indent=1)
        self._out.flush()
        print(summarize(diagnosis), file=self._err, flush=True)
        if self._file is not None:
            self._file.write_text(text + "\n", encoding="utf-8")
        if self._to_stdout:
            print(text, file=self._out, flush=True)
