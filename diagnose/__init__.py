"""Why is this PyTorch job slow, which part is to blame, and does the fix really help?

From Python: `with diagnose.watch():` around any loop says what it spends its time on, and
`diagnose.load("why.json")` reads what `diagnose script --json why.json` wrote. In a notebook
`%load_ext diagnose` gives `%%diagnose`, which watches a cell. Importing this loads neither torch
nor pandas.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from diagnose.commands.watch import Watched
    from diagnose.records.diagnosis import Diagnosis

__all__ = ["load", "step", "watch"]
__version__ = "0.1.0"


def load(path: str | os.PathLike[str]) -> Diagnosis:
    """The diagnosis in a file of --json, or that of a kept script.json, judged by this version.

    A ValueError says in one sentence why there is none: no such file, damaged, another schema.
    """
    from diagnose.analyze.script.rules import diagnose
    from diagnose.records import codec, diagnosis, limits, script
    from diagnose.render import store

    file = Path(path)
    try:
        data = store.read_json(file)
        if isinstance(data, dict) and "header" in data:
            return diagnose(store.load(file, script.ScriptRecord))
        store.check_schema(file, data, diagnosis.SCHEMA)
    except store.StoreError as error:
        raise ValueError(str(error)) from error.__cause__
    try:
        found = codec.from_dict(diagnosis.Diagnosis, data)
        limits.validate(found)
    except ValueError as error:
        raise ValueError(f"{file} is damaged: {error}; restore it or measure again") from error
    return found


def step() -> None:
    """Marks the end of a step, in a script whose steps are not found by themselves.

    Under `diagnose script` and `diagnose watch` every call is the end of a step; it does nothing
    anywhere else.
    """


def watch(
    *,
    seconds: float | None = None,
    steps: int | None = None,
    from_step: int = 0,
    json: str | os.PathLike[str] | None = None,
    label: str | None = None,
    reports: str | os.PathLike[str] = "reports",
) -> AbstractContextManager[Watched]:
    """`with diagnose.watch() as watched:` around any loop of steps, in the main thread.

    Nothing is changed in them. The verdict goes to stderr after `steps` of them, or `seconds`
    (40), or when the block ends; `watched.diagnosis` has it from then on. `json`, `label` and
    `reports` keep it, as the options of `diagnose watch` do.
    """
    import argparse

    from diagnose.commands.watch import watching
    from diagnose.records.script import DEFAULT_SECONDS, Options

    options = Options(
        steps, DEFAULT_SECONDS if seconds is None else seconds, mode="watch", from_step=from_step
    )
    words = argparse.Namespace(
        json=None if json is None else os.fspath(json),
        label=label,
        reports=Path(reports),
        fail_on=[],
    )
    return watching(options, words)


def load_ipython_extension(shell: Any) -> None:
    """What `%load_ext diagnose` calls."""
    from diagnose.commands.notebook import add_magic

    add_magic(shell)
