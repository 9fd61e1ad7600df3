"""What does `script` do? Runs somebody's script as it is and tells why it is slow."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path

from diagnose.analyze.script.rules import diagnose
from diagnose.commands.entry import positive, whole_and_positive
from diagnose.measure.ranks.job.ends import COULD_NOT_MEASURE, FINE, INTERRUPTED, USAGE
from diagnose.measure.session import Refused
from diagnose.records.script import DEFAULT_SECONDS, DEFAULT_WARMUP, ScriptRecord, Wanted
from diagnose.render.script import summarize


def add_verb(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Unlike the other verbs it writes no report, so it has options of its own."""
    text = "Run your own script as it is: which cause, which line, how many ms come back."
    verb = verbs.add_parser(
        "script",
        help=text,
        description=text,
        epilog="examples:\n  python -m diagnose script train.py --lr 0.1\n"
        "  torchrun --nproc-per-node=2 -m diagnose script --json why.json train.py",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    verb.add_argument(
        "--seconds",
        type=positive,
        default=DEFAULT_SECONDS,
        help="for the verdict, up to a fifth of it before the first step "
        f"(default: {DEFAULT_SECONDS:g})",
    )
    verb.add_argument(
        "--steps", type=whole_and_positive, metavar="N", help="at most about so many steps"
    )
    verb.add_argument(
        "--warmup",
        type=whole_and_positive,
        default=DEFAULT_WARMUP,
        metavar="N",
        help=f"steps before anything is timed (default: {DEFAULT_WARMUP})",
    )
    verb.add_argument(
        "--json", metavar="FILE", help="write the findings there too; - is standard output"
    )
    verb.add_argument(
        "--keep-running",
        action="store_true",
        help="let the script go on after the verdict; nothing is changed in it then",
    )
    verb.add_argument(
        "--no-interventions",
        dest="interventions",
        action="store_false",
        help="only watch: every gain is an estimate then",
    )
    verb.add_argument("script", metavar="SCRIPT", help="your .py file")
    verb.add_argument(
        "arguments", nargs=argparse.REMAINDER, metavar="...", help="its own arguments"
    )


def run(arguments: argparse.Namespace) -> int:
    from diagnose.measure.ranks.job.rendezvous import NoRendezvous, Refusal
    from diagnose.measure.script.watch.program import NoScript
    from diagnose.measure.script.watch.session import Session

    wanted = Wanted(
        arguments.steps,
        arguments.seconds,
        arguments.warmup,
        arguments.interventions,
        arguments.keep_running,
    )
    teller = _Teller(arguments.json)
    try:
        session = Session(Path(arguments.script), wanted, teller.tell)
        end = session.run(arguments.arguments)
    except (NoScript, Refusal) as error:
        print(f"diagnose: {error}", file=sys.stderr)
        return USAGE
    except (NoRendezvous, OSError) as error:
        print(f"diagnose: {error}", file=sys.stderr)
        return COULD_NOT_MEASURE
    if end.interrupted:
        return INTERRUPTED
    return end.code or teller.code


class _Teller:
    """Says what was found, once; the script's own output stays as it was."""

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

    def tell(self, record: ScriptRecord) -> None:
        diagnosis = diagnose(record)
        self.code = FINE if diagnosis.findings else COULD_NOT_MEASURE
        text = json.dumps(asdict(diagnosis), ensure_ascii=False, indent=1)
        self._out.flush()
        print(summarize(diagnosis), file=self._err, flush=True)
        if self._file is not None:
            self._file.write_text(text + "\n", encoding="utf-8")
        if self._to_stdout:
            print(text, file=self._out, flush=True)
