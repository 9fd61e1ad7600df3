"""What do the torchrun entries share? Options, who speaks, the machine, a progress line."""

from __future__ import annotations

import argparse
import contextlib
import os
import secrets
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from diagnose.measure.gpu import nvml
from diagnose.measure.gpu.nvml import Identity
from diagnose.measure.machine.describe import with_gpus
from diagnose.measure.ranks.job.ends import COULD_NOT_MEASURE, INTERRUPTED, USAGE
from diagnose.measure.ranks.job.rendezvous import Refusal, read_place
from diagnose.records.codec import from_dict
from diagnose.records.header import Machine, Source
from diagnose.render import store

TIMEOUT_SECONDS = 60.0

Action = Callable[[argparse.Namespace], int]


def add_shared_options(
    parser: argparse.ArgumentParser, efforts: Mapping[str, str], label_from: str
) -> None:
    """What both scripts understand; `efforts` says what each of them means here."""
    parser.add_argument("--backend", help="gloo, nccl, ... (default: the device's own)")
    parser.add_argument("--device", help="cpu, cuda, ... (default: the accelerator, else cpu)")
    effort = parser.add_mutually_exclusive_group()
    for name, text in efforts.items():
        effort.add_argument(f"--{name}", dest="effort", action="store_const", const=name, help=text)
    parser.add_argument(
        "--timeout",
        type=positive,
        default=TIMEOUT_SECONDS,
        metavar="SECONDS",
        help=f"longest wait for another rank (default: {TIMEOUT_SECONDS:g})",
    )
    parser.add_argument("--label", help=f"name of the report (default: from {label_from})")
    parser.add_argument(
        "--reports", type=Path, default=Path("reports"), metavar="DIR", help="(default: reports)"
    )


def run_entry(
    parser: argparse.ArgumentParser,
    argv: Sequence[str] | None,
    lead: Action,
    follow: Action,
    script: str,
) -> int:
    """Parse, find the own place, and act as rank 0 or as another; errors are one sentence."""
    speaks = os.environ.get("RANK", "0") == "0"
    # torchrun starts this once for every rank, and one complaint about an option is enough.
    with (
        open(os.devnull, "w") as nowhere,
        contextlib.redirect_stderr(sys.stderr if speaks else nowhere),
    ):
        arguments = parser.parse_args(argv)
    try:
        place = read_place()
    except Refusal as error:
        advice = f"start it with torchrun --nproc-per-node=2 diagnose/{script}"
        print(f"diagnose: {error}; {advice}", file=sys.stderr)
        return USAGE
    try:
        if arguments.label is not None:
            store.validate_label(arguments.label)
        return lead(arguments) if place.rank == 0 else follow(arguments)
    except KeyboardInterrupt:
        return INTERRUPTED
    except store.StoreError as error:
        if speaks:
            print(f"diagnose: {error}", file=sys.stderr)
        return USAGE if isinstance(error, store.LabelError) else COULD_NOT_MEASURE


def positive(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"'{text}' is not a positive number")
    return value


def whole_and_positive(text: str) -> int:
    if not text.isdecimal() or not 0 < int(text) < 2**31:
        raise argparse.ArgumentTypeError(f"'{text}' is not a whole number from 1 on")
    return int(text)


def seed(text: str) -> int:
    """Ranks add their number to it, so the largest seeds of torch are left out."""
    if not text.isdecimal() or int(text) >= 2**62:
        raise argparse.ArgumentTypeError(f"'{text}' is not a number from 0 to 2**62 - 1")
    return int(text)


def describe_machine(ready: dict[str, Any]) -> tuple[Machine, Source]:
    """The machine with its GPUs, which only NVML knows, and how far it can be believed."""
    found = [from_dict(Identity, each, "identity") for each in ready["identities"]]
    machine = from_dict(Machine, ready["machine"], "machine")
    with nvml.open_session() as session:
        is_stub = isinstance(session, nvml.Session) and nvml.is_stub(session)
        machine = with_gpus(machine, session, found, salt=secrets.token_hex(8))
    if ready["is_fake"]:
        return machine, "fake device"
    return machine, "stub" if found and is_stub else "hardware"


class Progress:
    """One line on a terminal that says where rank 0 is; nothing in a log file."""

    def __init__(self) -> None:
        self._shown = sys.stderr is not None and sys.stderr.isatty()
        self._done = ""

    def show(self, where: str) -> None:
        if self._shown:
            print(f"\r\033[K{self._done}{where}", end="", file=sys.stderr, flush=True)

    def advance(self, done: int, planned: int) -> None:
        self._done = f"[{done}/{planned}] "

    def clear(self) -> None:
        if self._shown:
            print("\r\033[K", end="", file=sys.stderr, flush=True)
