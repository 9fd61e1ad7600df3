"""How are the words of a command line read? Numbers, spellings, and options that verbs share."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

from diagnose.records.diagnosis import Gate
from diagnose.records.exit_codes import USAGE
from diagnose.records.script import CAUSES, Cause

LARGEST_COUNT = 2**31 - 1
# torch takes seeds below 2**63; ranks add their number to it.
LARGEST_SEED = 2**62 - 1
SMALLEST_SIZE = 2**10
_SUFFIXES = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30}


class OneSentenceParser(argparse.ArgumentParser):
    """Says what is wrong in one line; the whole usage is for --help."""

    def error(self, message: str) -> NoReturn:
        self.exit(USAGE, f"{self.prog}: {message}; see --help\n")


class Parser(OneSentenceParser):
    """The same for the verbs; torchrun starts one process per rank, and one complaint is enough."""

    def error(self, message: str) -> NoReturn:
        self.exit(USAGE, f"diagnose: {message}; see --help\n" if is_first_rank() else None)


def is_first_rank() -> bool:
    """Of those that a launcher has started; a RANK beyond WORLD_SIZE is left over from another."""
    rank, size = (os.environ.get(name, "") for name in ("RANK", "WORLD_SIZE"))
    known = rank.isdigit() and size.isdigit() and int(rank) < int(size)
    return not known or int(rank) == 0


def hyphenate(words: Sequence[str]) -> list[str]:
    """--save_steps=5 as --save-steps=5; values keep their underscores."""
    result = []
    for word in words:
        name, equals, value = word.partition("=")
        result.append((name.replace("_", "-") if name.startswith("--") else name) + equals + value)
    return result


def count(text: str) -> int:
    return _whole(text, least=1)


def count_or_none(text: str) -> int:
    return _whole(text, least=0, most=LARGEST_SEED)


seed = count_or_none


def _whole(text: str, least: int, most: int = LARGEST_COUNT) -> int:
    if not text.isdecimal() or int(text) < least:
        raise argparse.ArgumentTypeError(f"'{text}' is not a whole number of {least} or more")
    if int(text) > most:
        raise argparse.ArgumentTypeError(f"'{text[:20]}' is too large; at most {most}")
    return int(text)


def positive(text: str) -> float:
    return between(text, 0, float("inf"), "a positive number")


def between(text: str, low: float, high: float, expected: str) -> float:
    """The number, which lies inside the ends and is none of them."""
    try:
        value = float(text)
    except ValueError:
        value = low
    if not low < value < high:
        raise argparse.ArgumentTypeError(f"'{text}' is not {expected}")
    return value


def nbytes(text: str) -> int:
    digits, suffix = (text[:-1], text[-1:].upper()) if text[-1:].isalpha() else (text, "")
    if not digits.isdecimal() or suffix not in _SUFFIXES:
        raise argparse.ArgumentTypeError(f"'{text}' is not a size; write 4000000, 64M or 1G")
    value = int(digits) * _SUFFIXES[suffix]
    if value < SMALLEST_SIZE:
        raise argparse.ArgumentTypeError(f"'{text}' is below the smallest size, {SMALLEST_SIZE}")
    return value


def add_number(
    parser: argparse.ArgumentParser,
    name: str,
    text: str,
    *,
    kind: Callable[[str], float] = count,
    default: float | None = None,
    metavar: str = "N",
) -> None:
    """An option with a number; what it is without one is added to its help."""
    if default is not None:
        text += f" (default: {default:g})"
    parser.add_argument(name, type=kind, default=default, metavar=metavar, help=text)


def add_seconds(
    parser: argparse.ArgumentParser, name: str, text: str, default: float | None = None
) -> None:
    add_number(parser, name, text, kind=positive, default=default, metavar="SECONDS")


def gate(text: str) -> Gate:
    """input>10%, any>5%: the share of a step that a cause may take."""
    found = re.fullmatch(r"([a-z]+)>(\d+(?:\.\d+)?)%", text.replace(" ", ""))
    causes: dict[str, Cause | None] = {each: each for each in CAUSES if each != "compute"}
    causes["any"] = None
    if found is None or found[1] not in causes or float(found[2]) > 100:
        raise argparse.ArgumentTypeError(
            f"'{text}' is not a gate; write a cause and a percentage, such as 'input>10%'; the "
            f"causes are {', '.join(causes)}"
        )
    return Gate(causes[found[1]], float(found[2]) / 100)


def add_gate_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--fail-on",
        type=gate,
        action="append",
        default=[],
        metavar="CAUSE>PERCENT",
        help="exit with 1 if this cause takes more of a step, all of its interval included, such "
        "as 'input>10%%' or 'any>5%%'; with 3 if that is not certain; may be given several times",
    )


def add_reports_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--reports",
        type=Path,
        default=Path("reports"),
        metavar="DIR",
        help="folder of all reports (default: reports)",
    )


def add_effort_options(parser: argparse.ArgumentParser, quick: str, full: str) -> None:
    effort = parser.add_mutually_exclusive_group()
    for name, text in (
        ("quick", f"{quick} (default on the CPU)"),
        ("full", f"{full} (default on accelerators)"),
        ("smoke", "as short as possible, to try the tool: its numbers mean nothing"),
    ):
        effort.add_argument(f"--{name}", dest="effort", action="store_const", const=name, help=text)


def add_device_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", help="cpu, cuda, ... (default: the accelerator, else cpu)")


def add_report_options(parser: argparse.ArgumentParser, label_from: str) -> None:
    """What every verb has that measures and writes a report."""
    add_device_option(parser)
    add_reports_option(parser)
    parser.add_argument("--label", help=f"name of the report (default: from {label_from})")
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")


def add_job_options(parser: argparse.ArgumentParser, workload: str, unit: str) -> None:
    """What run, optimize and batch-size share; a `unit` of their work has a time limit."""
    add = parser.add_argument
    add("--workload", default=workload, help=f"built-in, or your .py file (default: {workload})")
    add("--size", help="size of the workload; a built-in one has seed, small and tiny")
    add(
        *("-d", "--data"),
        metavar="FILE",
        help="your own .tsv, .jsonl or .txt sentences, .csv of days, or .jsonl questions",
    )
    add(
        *("-m", "--model"),
        metavar="DIR",
        help="your own model (config, safetensors, tokenizer) for textgen, vqa or molmo",
    )
    add_effort_options(parser, "about two minutes", "as long as the protocol asks")
    add_report_options(parser, "the device's name")
    add_seconds(parser, "--timeout", f"time limit for one {unit}")
    add_number(
        parser, "--seed", "random seed of weights, data order and blocks", kind=seed, default=0
    )
