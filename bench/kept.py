"""Where does a long command keep what it has measured, so that it goes on where it was ended?

python -m bench.kept            write the pages of what is kept anew
python -m bench.kept --check    fail if a page does not say what its record says
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from diagnose.measure.machine.describe import count_cores, read_commit, read_cpu_model
from diagnose.records.exit_codes import FINE, FOUND
from diagnose.records.files import write_file

ROOT = Path(__file__).resolve().parents[1]
REPORTS = ROOT / "reports"
# Of the commands: each keeps reports/<name>.json, and has a PAGE.
NAMES = ("evaluated", "same_code", "whole_command")

Settings = Mapping[str, Any]
Entry = Mapping[str, Any]


class Unreadable(Exception):
    """A file does not hold what these commands keep."""


@dataclass(frozen=True)
class Page:
    """What a command asks, and how it is answered from what is kept."""

    question: str
    command: str
    answer: Callable[[Settings, Sequence[Entry]], str]

    def render(self, settings: Settings, entries: Sequence[Entry]) -> str:
        named = "\n".join(table(("<setting", "<value"), settings.items()))
        written = f"Written by `{self.command}`."
        blocks = f"# {self.question}", written, self.answer(settings, entries), named
        return "\n\n".join(blocks) + "\n"


class Kept:
    """The entries measured so far, all with the same settings, machine and commit."""

    def __init__(self, path: Path, settings: Settings, *, allow_dirty: bool = False) -> None:
        self.path = path
        commit = read_commit(ROOT).value or "unknown"
        if _is_dirty(commit) and not allow_dirty:
            sys.exit("commit first: what is kept must name the code that measured it")
        self.settings = {
            **settings,
            "processor": read_cpu_model(Path("/")).value or "unknown",
            "cores": count_cores(),
            "commit": commit,
        }
        self.entries: list[Entry] = []
        if not path.exists():
            return
        try:
            found, self.entries = read(path)
        except Unreadable as error:
            sys.exit(f"{error}; remove it or name another --output")
        if found != self.settings:
            sys.exit(f"{path} has other settings ({found}); name another --output")

    def add(self, entry: Entry) -> None:
        self.entries.append(entry)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps({"settings": self.settings, "entries": self.entries}, indent=1) + "\n"
        write_file(self.path, lambda temporary: temporary.write_text(text))

    def publish(self, page: Page) -> None:
        """A page for a person, beside the file."""
        text = page.render(self.settings, self.entries)
        self.path.with_suffix(".md").write_text(text, encoding="utf-8")


def table(titles: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    """Lines of Markdown. A title begins with < over text and with > over numbers."""
    named = [each[1:] for each in titles]
    aligned = [":--" if each.startswith("<") else "--:" for each in titles]
    return [row(each) for each in (named, aligned, *rows)]


def row(cells: Iterable[object]) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def read(path: Path) -> tuple[dict[str, Any], list[Entry]]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return dict(found["settings"]), list(found["entries"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise Unreadable(f"{path} cannot be read ({error})") from error


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="kept", description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing, say what differs")
    parser.add_argument("--reports", type=Path, default=REPORTS, metavar="DIR")
    add_allow_dirty(parser)
    options = parser.parse_args(words)
    problems = [
        problem
        for name in NAMES
        for problem in _look(options.reports / f"{name}.json", find_page(name), options)
    ]
    for each in problems:
        print(each, file=sys.stderr)
    return FOUND if problems else FINE


def add_allow_dirty(parser: argparse.ArgumentParser) -> None:
    text = "accept what was measured from uncommitted code"
    parser.add_argument("--allow-dirty", action="store_true", help=text)


def find_page(name: str) -> Page:
    page: Page = importlib.import_module(f"bench.{name}").PAGE
    return page


def _look(path: Path, page: Page, options: argparse.Namespace) -> list[str]:
    """What is wrong with a page; it is written anew where nobody only checks."""
    beside = path.with_suffix(".md")
    shown = beside.read_text(encoding="utf-8") if beside.exists() else ""
    if not path.exists():
        return [f"{beside} has no record to prove it: remove it or measure again"] if shown else []
    try:
        settings, entries = read(path)
    except Unreadable as error:
        return [str(error)]
    text = page.render(settings, entries)
    if not options.check:
        beside.write_text(text, encoding="utf-8")
        return []
    problems = []
    if shown != text:
        problems.append(f"{beside} differs from its record: run `make report`")
    if _is_dirty(settings.get("commit", "")) and not options.allow_dirty:
        problems.append(f"{path} was measured from code that no commit holds: measure again")
    return problems


def _is_dirty(commit: str) -> bool:
    return commit.endswith("-dirty")


if __name__ == "__main__":
    sys.exit(main())
