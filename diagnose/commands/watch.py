"""What does `watch` do? Lets a job run as without us, and says what was seen of it."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from diagnose.commands.script import run_script
from diagnose.commands.shared.arguments import add_number, count_or_none
from diagnose.commands.shared.keep import complain
from diagnose.commands.shared.verdict import (
    Output,
    add_script_arguments,
    add_verdict_options,
    open_header,
)
from diagnose.measure.machine.torch_check import require_torch
from diagnose.records.diagnosis import Diagnosis
from diagnose.records.script import Options
from diagnose.render import store

MANUAL = """examples:
  diagnose watch train.py --lr 0.1
  diagnose watch --from-step 1000 --steps 200 train.py
  torchrun --nproc-per-node=2 --no-python diagnose watch train.py

Nothing is replayed, left out or called again: the job computes what it would compute
without this, runs to its end, and keeps its files and its exit code. Gains are upper bounds."""


def add_options(parser: argparse.ArgumentParser) -> None:
    add_range_options(parser)
    add_verdict_options(parser)
    add_script_arguments(parser)


def add_range_options(parser: argparse.ArgumentParser) -> None:
    add_number(parser, "--from-step", "begin after so many steps", kind=count_or_none, default=0)
    add_number(parser, "--steps", "give the verdict after so many steps, while the job goes on")


def run(arguments: argparse.Namespace) -> int:
    options = Options(
        arguments.steps,
        arguments.seconds,
        arguments.warmup,
        mode="watch",
        from_step=arguments.from_step,
    )
    return run_script(arguments, options)


@dataclass(frozen=True)
class Watched:
    """What `with diagnose.watch() as watched:` gives."""

    _output: Output

    @property
    def diagnosis(self) -> Diagnosis | None:
        """None until the verdict is given."""
        return self._output.diagnosis


@contextlib.contextmanager
def watching(options: Options, words: argparse.Namespace, name: str = "") -> Iterator[Watched]:
    """Around somebody's loop; an error in it is theirs, one of ours is only told.

    `words` are those of the verdict's options, and `name` is what the loop is called by.
    """
    require_torch()
    # Imported here: it loads torch.
    from diagnose.measure.script.session import Session

    if words.label is not None:
        store.validate_label(words.label)
    script = Path(name or sys.argv[0] or "the script")
    label = words.label or store.label_from_device_name(script.stem)
    output = Output(words)
    session = Session(script, lambda: open_header(label), options, output.write)
    try:
        with session.watching():
            yield Watched(output)
    finally:
        try:
            session.tell("the block ended", goes_on=True)
        except Exception as error:
            complain(f"this tool failed ({type(error).__name__}: {error}); your code goes on")
