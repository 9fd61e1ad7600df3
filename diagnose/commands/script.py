"""What does `script` do? Runs somebody's script unchanged and says why it is slow."""

from __future__ import annotations

import argparse
import json
import secrets
import sys
from dataclasses import asdict, replace
from datetime import datetime, timezone
from pathlib import Path

from diagnose.analyze.script.rules import diagnose
from diagnose.commands.arguments import add_number, add_reports_option, add_seconds
from diagnose.commands.keep import complain, write_report
from diagnose.measure.machine.torch_check import require_torch
from diagnose.measure.session import CouldNotOpen, Refused
from diagnose.records.codec import dumps
from diagnose.records.exit_codes import COULD_NOT_MEASURE, FINE, INTERRUPTED
from diagnose.records.header import Header, Reading, Source
from diagnose.records.script import (
    DEFAULT_SECONDS,
    DEFAULT_WARMUP,
    Options,
    ScriptRecord,
    without_paths,
)
from diagnose.render import store
from diagnose.render.script import summarize

MANUAL = """examples:
  python -m diagnose script train.py --lr 0.1
  python -m diagnose script --label my-model train.py
  torchrun --nproc-per-node=2 -m diagnose script --json why.json train.py"""


def add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    budget = "time budget in seconds; up to a fifth may pass before the first step"
    add_seconds(parser, "--seconds", budget, DEFAULT_SECONDS)
    add_number(parser, "--steps", "stop after about so many steps")
    add_number(parser, "--warmup", "steps before anything is timed", default=DEFAULT_WARMUP)
    add("--label", help="keep the record and write a report to DIR/LABEL (default: only print)")
    add_reports_option(parser)
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
    require_torch()
    # Imported here: it loads torch.
    from diagnose.measure.script.program import NoScript
    from diagnose.measure.script.session import Session

    options = Options(
        arguments.steps,
        arguments.seconds,
        arguments.warmup,
        arguments.interventions,
        arguments.keep_running,
    )
    output = _Output(arguments)
    script = Path(arguments.script)
    label = arguments.label or store.label_from_device_name(script.stem)
    _warn_of_our_own_name(script)
    try:
        session = Session(script, lambda: _open_header(label), options, output.write)
        end = session.run(arguments.arguments)
    except NoScript as error:
        raise Refused(str(error)) from None
    except OSError as error:
        raise CouldNotOpen(str(error)) from None
    if end.interrupted:
        return INTERRUPTED
    return end.code or output.code


def _warn_of_our_own_name(script: Path) -> None:
    """Every name of the script's modules is its own, but for the one that this package has."""
    for found in (script.parent / "diagnose.py", script.parent / "diagnose"):
        if found.exists() and found.resolve() != Path(__file__).resolve().parents[1]:
            complain(
                f"`import diagnose` in your script gives this tool, not {found}; rename yours "
                "while you measure if the script needs it"
            )


def _open_header(label: str) -> Header:
    from diagnose.measure.gpu import nvml
    from diagnose.measure.machine.describe import identities, probe, with_gpus
    from diagnose.measure.machine.device import open_device

    device = open_device(None)
    found = identities(device.kind)
    with nvml.open_session() as session:
        is_stub = isinstance(session, nvml.Session) and nvml.is_stub(session)
        machine = with_gpus(probe(device.kind), session, found, salt=secrets.token_hex(8))
    source: Source = (
        "fake device" if device.is_fake else "stub" if found and is_stub else "hardware"
    )
    busy = Reading(None, "the script was already running")
    created = datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
    return Header(label, created, source, "full", replace(machine, cpu_busy_before=busy))


class _Output:
    """Shows what was found, once; the script's own output stays as it was."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.code = FINE
        # The script may put others in their place.
        self._out, self._err = sys.stdout, sys.stderr
        self._to_stdout = arguments.json == "-"
        # The script may change the directory.
        self._file = None if arguments.json in (None, "-") else Path(arguments.json).absolute()
        self._reports = arguments.reports.absolute() if arguments.label is not None else None
        if self._file is not None and self._file.suffix == ".py":
            raise Refused(f"--json would overwrite {self._file.name}; name another file before it")
        if self._file is not None and not self._file.parent.is_dir():
            raise Refused(f"--json: there is no directory {self._file.parent}")

    def write(self, record: ScriptRecord) -> None:
        diagnosis = diagnose(record)
        self.code = FINE if diagnosis.findings else COULD_NOT_MEASURE
        text = json.dumps(asdict(diagnosis), ensure_ascii=False, indent=1)
        self._out.flush()
        print(summarize(diagnosis), file=self._err, flush=True)
        if self._file is not None:
            self._file.write_text(text + "\n", encoding="utf-8")
        if self._to_stdout:
            print(text, file=self._out, flush=True)
        if self._reports is not None:
            self._keep(record, self._reports / record.header.label)

    def _keep(self, record: ScriptRecord, directory: Path) -> None:
        try:
            with store.label_lock(directory):
                store.save(without_paths(record), directory)
                write_report(directory)
        except store.StoreError as error:
            # The disk is the reader's to repair; what was measured must not be lost with it.
            print(dumps(record).decode(), file=self._err)
            complain(str(error))
            self.code = COULD_NOT_MEASURE
            return
        print(f"report: {directory / 'report.md'}", file=self._err, flush=True)
