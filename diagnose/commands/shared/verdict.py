"""How is the verdict on a script told? Once, beside the script's own output, to whoever asked."""

from __future__ import annotations

import argparse
import json
import secrets
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import TextIO

from rich.console import Console
from rich.text import Text

from diagnose.analyze.script.gates import judge_gates
from diagnose.analyze.script.rules import diagnose
from diagnose.commands.shared.arguments import (
    add_gate_option,
    add_number,
    add_reports_option,
    add_seconds,
)
from diagnose.commands.shared.keep import complain, write_report, write_text
from diagnose.measure.script.program import NoScript, find_module
from diagnose.measure.session import Refused
from diagnose.records.codec import dumps
from diagnose.records.diagnosis import Diagnosis
from diagnose.records.exit_codes import COULD_NOT_MEASURE, FINE, FOUND
from diagnose.records.header import Header, Reading, Source
from diagnose.records.script import DEFAULT_SECONDS, DEFAULT_WARMUP, ScriptRecord, without_paths
from diagnose.render import store
from diagnose.render.script.terminal import Line, Style, join, layout


def add_verdict_options(parser: argparse.ArgumentParser) -> None:
    """What the verbs that run a script share."""
    add = parser.add_argument
    budget = "time budget in seconds; up to a fifth may pass before the first step"
    add_seconds(parser, "--seconds", budget, DEFAULT_SECONDS)
    add_number(parser, "--warmup", "steps before anything is timed", default=DEFAULT_WARMUP)
    add("--label", help="keep the record and write a report to DIR/LABEL (default: only print)")
    add_reports_option(parser)
    add("--json", metavar="FILE", help="write the findings there too; - is standard output")
    add_gate_option(parser)


def add_script_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("-m", dest="module", action="store_true", help="SCRIPT is a module, as in `python -m`")
    add("script", metavar="SCRIPT", help="your .py file, or the name of a module after -m")
    add("arguments", nargs=argparse.REMAINDER, metavar="...", help="its own arguments")


def find_script(arguments: argparse.Namespace) -> Path:
    """The file that is to be run."""
    try:
        return find_module(arguments.script) if arguments.module else Path(arguments.script)
    except NoScript as error:
        raise Refused(str(error)) from None


def warn_of_our_own_name(script: Path) -> None:
    """Every name of the script's modules is its own, but for the one that this package has."""
    for found in (script.parent / "diagnose.py", script.parent / "diagnose"):
        if found.exists() and found.resolve() != Path(__file__).resolve().parents[2]:
            complain(
                f"`import diagnose` in your script gives this tool, not {found}; rename yours "
                "while you measure if the script needs it"
            )


def open_header(label: str) -> Header:
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


_COLORS: dict[Style, str] = {
    "title": "bold",
    "cause": "bold yellow",
    "code": "cyan",
    "fix": "green",
    "faint": "dim",
}


def show_lines(lines: Sequence[Line], stream: TextIO) -> None:
    """In color on a terminal, plain anywhere else."""
    if not stream.isatty():
        print(join(lines), file=stream, flush=True)
        return
    console = Console(file=stream, highlight=False, soft_wrap=True)
    for each in lines:
        console.print(Text(each.text, style=_COLORS.get(each.style, "")))
    stream.flush()


class Output:
    """Shows what was found, once; the script's own output stays as it was."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.code = FINE
        self.diagnosis: Diagnosis | None = None
        # The script may put others in their place.
        self._out, self._err = sys.stdout, sys.stderr
        self._gates = arguments.fail_on
        self._to_stdout = arguments.json == "-"
        # The script may change the directory.
        self._file = None if arguments.json in (None, "-") else Path(arguments.json).absolute()
        label = arguments.label
        self._directory = None if label is None else arguments.reports.absolute() / label
        if self._file is not None and self._file.suffix == ".py":
            raise Refused(f"--json would overwrite {self._file.name}; name another file before it")
        if self._file is not None and not self._file.parent.is_dir():
            raise Refused(f"--json: there is no directory {self._file.parent}")

    @property
    def places(self) -> list[str]:
        """What is written for the user, and not by the script."""
        return [str(each) for each in (self._file, self._directory) if each is not None]

    def write(self, record: ScriptRecord) -> None:
        self.tell(record)
        self.save(record)

    def tell(self, record: ScriptRecord) -> None:
        """On stderr, and by the exit code."""
        diagnosis = self.diagnosis = diagnose(record)
        self.code = FINE if diagnosis.findings else COULD_NOT_MEASURE
        self._out.flush()
        show_lines(layout(diagnosis), self._err)
        self._judge(diagnosis)

    def save(self, record: ScriptRecord) -> None:
        """Where --json and --label say."""
        text = json.dumps(asdict(diagnose(record)), ensure_ascii=False, indent=1)
        if self._to_stdout:
            print(text, file=self._out, flush=True)
        if self._file is not None and not write_text(self._file, text):
            self.code = COULD_NOT_MEASURE
        if self._directory is not None:
            self._keep(record, self._directory)

    def _judge(self, diagnosis: Diagnosis) -> None:
        judgments = judge_gates(diagnosis, self._gates)
        for each in judgments:
            print(f"diagnose: {each.sentence}", file=self._err, flush=True)
        verdicts = {each.verdict for each in judgments}
        if "FAILED" in verdicts:
            self.code = FOUND
        elif "INCONCLUSIVE" in verdicts:
            self.code = COULD_NOT_MEASURE

    def show(self, text: str) -> None:
        print(text, end="", file=self._err, flush=True)

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
