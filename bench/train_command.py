"""How is a training command asked, and how does it end? Options, exit codes, one sentence each.

Nothing here imports torch, so that --help and a wrong option are answered at once.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import field, fields
from typing import Any, TypeVar

from diagnose.commands.shared.arguments import OneSentenceParser, between, hyphenate
from diagnose.workload import WorkloadError

FINE, USAGE, COULD_NOT_TRAIN, INTERRUPTED = 0, 2, 3, 130

Options = TypeVar("Options")


class TrainingFailed(Exception):
    """Training could not go on; the message says why and what to do."""


def option(
    kind: Callable[[str], Any] = str, text: str = "", default: Any = None, **more: Any
) -> Any:
    """A field of a dataclass that is an option as well; `more` goes to argparse as it is."""
    return field(default=default, metadata={"type": kind, "help": text, **more})


def flag(text: str = "") -> Any:
    return field(default=False, metadata={"action": "store_true", "help": text})


def positive(text: str) -> float:
    return between(text, 0.0, float("inf"), "a positive number")


def parse_options(
    kind: type[Options],
    words: Sequence[str] | None,
    check: Callable[[Options], None],
    *,
    prog: str,
    description: str,
    example: str,
) -> Options:
    """The dataclass filled from the words, or exit code 2 with one sentence.

    Every field is an option: save_steps is --save-steps and --save_steps. `check` looks at what
    belongs together.
    """
    parser = OneSentenceParser(
        prog=prog,
        description=description,
        epilog=example,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    for each in fields(kind):  # type: ignore[arg-type]
        spelling = f"--{each.name.replace('_', '-')}"
        parser.add_argument(spelling, default=each.default, **each.metadata)
    given = parser.parse_args(hyphenate(sys.argv[1:] if words is None else words))
    options = kind(**vars(given))
    try:
        check(options)
    except WorkloadError as error:
        parser.exit(USAGE, f"{parser.prog}: {error}\n")
    return options


def end_with_code(prog: str, run: Callable[[], int], saves_memory: str) -> int:
    """What `run` returns, or the code of what stopped it; a fault of ours is raised."""
    try:
        return run()
    except WorkloadError as error:
        return complain(prog, str(error), USAGE)
    except KeyboardInterrupt:
        return complain(prog, "interrupted", INTERRUPTED)
    except Exception as error:
        reason = _explain(error, saves_memory)
        if reason is None:
            raise
        return complain(prog, reason, COULD_NOT_TRAIN)


def complain(prog: str, sentence: str, code: int) -> int:
    # Wrong input is wrong in every process; what fails in one of them is told by that one.
    if code == COULD_NOT_TRAIN or os.environ.get("RANK", "0") == "0":
        print(f"{prog}: {sentence}", file=sys.stderr)
    return code


def _explain(error: Exception, saves_memory: str) -> str | None:
    """Why training could not go on, if it is a known way to fail; None for a fault of ours."""
    import torch

    from diagnose.measure.machine.out_of_memory import is_out_of_memory

    if isinstance(error, TrainingFailed):
        return str(error)
    if is_out_of_memory(error, torch.OutOfMemoryError):
        return f"out of memory; {saves_memory}"
    return None
