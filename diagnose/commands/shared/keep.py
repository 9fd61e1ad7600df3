"""How is nothing lost that was measured? Every state is saved, whatever ends the command."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Generic, TypeVar

from diagnose.records.codec import dumps
from diagnose.render import store

# What should have been measured, and was not.
BROKEN = ("failed", "hung", "invalid")

R = TypeVar("R")
Kept = TypeVar("Kept", bound=store.Record)


class Keeper(Generic[R]):
    """The record of one command; while it is open, its label is locked."""

    def __init__(
        self,
        write: Callable[[R], object],
        kept: Callable[[R], str],
        finish: Callable[[R], object] = lambda record: None,
    ) -> None:
        """`kept` says what would be lost with the record ("2 of 7 ... are in ..."), "" if nothing.

        `finish` makes of the saved record whatever is rendered from it.
        """
        self._write, self._kept, self._finish = write, kept, finish
        self._locks = contextlib.ExitStack()
        self.record: R | None = None

    @property
    def kept(self) -> str:
        return "" if self.record is None else self._kept(self.record)

    def lock(self, directory: Path, otherwise: str = "use --label") -> None:
        self._locks.enter_context(store.label_lock(directory, otherwise))

    def save(self, record: R) -> None:
        self.record = record
        self._write(record)

    def finish(self, record: R) -> None:
        self.save(record)
        self._finish(record)

    def __enter__(self) -> Keeper[R]:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with self._locks:
            try:
                if isinstance(error, KeyboardInterrupt) and self.record is not None and self.kept:
                    # It may have come between a result and its saving.
                    self.finish(self.record)
                    raise KeyboardInterrupt(f"interrupted; {self.kept}") from None
            except store.StoreError:
                self._print()
                raise
            if isinstance(error, store.StoreError):
                self._print()

    def _print(self) -> None:
        """The disk is the reader's to repair; what was measured must not be lost with it."""
        if self.kept:
            print(dumps(self.record).decode(), file=sys.stderr)


def keep_report(arguments: argparse.Namespace, count: Callable[[Kept], str]) -> Keeper[Kept]:
    """For a record that lies in a label's directory, with its report beside it.

    `count` is what there is of it so far: "2 of 7 stages"; "" while there is nothing.
    """

    def directory(record: Kept) -> Path:
        reports: Path = arguments.reports
        return reports / record.header.label

    def kept(record: Kept) -> str:
        resume = ", --resume goes on from there" if "resume" in arguments else ""
        return count(record) and f"{count(record)} are in {directory(record)}{resume}"

    return Keeper(
        lambda record: store.save(record, directory(record)),
        kept,
        lambda record: write_report(directory(record)),
    )


def write_report(directory: Path) -> None:
    """The report and the index of all reports."""
    from diagnose.render import check

    check.write_report(directory)
    check.write_index(directory.parent)


def with_label(record: Kept, asked: str | None, parts: Sequence[str]) -> Kept:
    """Under the label that was asked for, or one that says what was measured where."""
    header = record.header
    words = [header.machine.device_name, *parts]
    words += ["smoke"] if header.effort == "smoke" else []
    made = store.label_from_device_name(" ".join(words))
    return replace(record, header=replace(header, label=asked or made))


def print_answer(
    record: Kept, arguments: argparse.Namespace, summary: Mapping[str, Any], text: str
) -> None:
    """What was found: the summary as JSON, or the text and where the report is."""
    label = record.header.label
    if arguments.json:
        print(json.dumps({"label": label, **summary}, ensure_ascii=False, indent=1))
        return
    if record.header.effort == "smoke":
        print("Not a result: a smoke run takes too few steps to mean anything.")
    print(text)
    print(f"report: {arguments.reports / label / 'report.md'}")


def complain(sentence: str) -> None:
    print(f"diagnose: {sentence}", file=sys.stderr, flush=True)


def write_text(file: Path, text: str) -> bool:
    """Whether it could be written: what has been told already must not be lost with it."""
    try:
        file.write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        complain(f"{file} cannot be written: {error.strerror or error}")
        return False
    return True
