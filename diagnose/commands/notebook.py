"""What does `%%diagnose` do in a notebook? Watches the steps of one cell, and changes nothing."""

from __future__ import annotations

import argparse
import shlex
from typing import Any, NoReturn

from diagnose.commands.shared.verdict import add_verdict_options
from diagnose.commands.watch import add_range_options, watching
from diagnose.records.script import Options

MAGIC = "diagnose"


class _CellParser(argparse.ArgumentParser):
    """A notebook goes on after a wrong word."""

    def error(self, message: str) -> NoReturn:
        raise ValueError(f"%%{MAGIC}: {message}")


def add_magic(shell: Any) -> None:
    shell.register_magic_function(_Cell(shell), "cell", MAGIC)


class _Cell:
    """The magic of one shell; an error of the cell is shown as the shell shows it."""

    def __init__(self, shell: Any) -> None:
        self._shell = shell

    def __call__(self, line: str, cell: str) -> None:
        from IPython.core.error import UsageError

        parser = _CellParser(prog=f"%%{MAGIC}", add_help=False)
        add_range_options(parser)
        add_verdict_options(parser)
        try:
            words = parser.parse_args(shlex.split(line))
        except ValueError as error:  # shlex has some too
            raise UsageError(str(error)) from None
        options = Options(
            words.steps, words.seconds, words.warmup, mode="watch", from_step=words.from_step
        )
        with watching(options, words, "the cell"):
            self._shell.run_cell(cell)
