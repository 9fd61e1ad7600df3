"""Which line of the user's code is running? Frames of libraries fold into the line that called.

A frame is the user's when its file lies under one of the roots. What is installed there (a
virtual environment inside the project), torch, Python itself and this package never are.
"""

from __future__ import annotations

import linecache
import os
import sys
import sysconfig
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import NamedTuple

import torch
from torch.autograd.graph import _engine_run_backward

# A longer statement would fill the table; its beginning is enough to recognise it.
LONGEST_CODE = 120

_INSTALLED = frozenset(("site-packages", "dist-packages"))
_TORCH = Path(torch.__file__).resolve().parent
_NEVER_THE_USERS = (
    _TORCH,
    Path(__file__).resolve().parents[2],
    Path(sysconfig.get_path("stdlib")).resolve(),
)
# Code that torch.compile has written.
_COMPILED = "torchinductor"
# What belongs to updating the parameters, beside the optimizers themselves.
_UPDATES_PARAMETERS = (
    _TORCH / "optim",
    _TORCH / "amp" / "grad_scaler.py",
    _TORCH / "nn" / "utils" / "clip_grad.py",
)
_ENGINE = _engine_run_backward.__code__


class Place(NamedTuple):
    """A line of the user's code."""

    path: str  # as the interpreter names the file
    line: int
    function: str


# Where the suite itself calls the optimizer, no line of the user's is to blame.
OPTIMIZER = Place("", 0, "optimizer")

# One point of the user's code from which something is called: file, function, its first line,
# and the position in its byte code.
Instruction = tuple[str, str, int, int]


class Caller(NamedTuple):
    """Who asked for an operator."""

    place: Place | None
    instruction: Instruction | None
    updates_parameters: bool


class SourceLines:
    """The user's lines under some roots, and how often each of their calls was made."""

    def __init__(self, roots: Sequence[Path]) -> None:
        self._roots = tuple(root.resolve() for root in roots)
        self._relative: dict[str, str | None] = {}
        self._updates: dict[str, bool] = {}
        self.calls: Counter[Instruction] = Counter()

    def find(self, frame: FrameType | None, *, in_backward: bool) -> Caller:
        """The innermost line of the user's, from this frame outwards.

        In backward the search ends at the autograd engine: beyond it stands the line that
        called backward(), which did not ask for this operator.
        """
        updates = False
        while frame is not None:
            code = frame.f_code
            if in_backward and code is _ENGINE:
                break
            if self.name(code.co_filename) is not None:
                place = Place(code.co_filename, frame.f_lineno, code.co_name)
                return Caller(place, _instruction(frame), updates)
            updates = updates or self._is_update(code.co_filename)
            frame = frame.f_back
        return Caller(OPTIMIZER if updates else None, None, updates)

    def note_call(self, frame: FrameType, event: str, argument: object) -> None:
        """For sys.setprofile: count the calls that the user's own instructions make.

        Not those inside the backward pass, where torch puts frames of its own between.
        """
        caller = frame.f_back
        if (
            event == "call"
            and caller is not None
            and self.name(caller.f_code.co_filename)
            and torch._C._current_autograd_node() is None
        ):
            self.calls[_instruction(caller)] += 1

    def name(self, path: str) -> str | None:
        """The file as a report names it: never an absolute path; None if it is not the user's.

        A root that is a package keeps its own name, so that the file reads as it is imported.
        """
        if path not in self._relative:
            self._relative[path] = self._name(Path(path))
        return self._relative[path]

    def _name(self, path: Path) -> str | None:
        if not path.is_file():  # "<string>" and other code without a file
            return cell_name(str(path))
        path = path.resolve()
        cache = os.environ.get("TORCHINDUCTOR_CACHE_DIR")
        if (cache and Path(cache).resolve() in path.parents) or any(
            part.startswith(_COMPILED) for part in path.parts
        ):
            return None
        for root in self._roots:
            if root not in path.parents or any(each in path.parents for each in _NEVER_THE_USERS):
                continue
            inside = path.relative_to(root)
            if _INSTALLED.isdisjoint(inside.parts):
                package = (root / "__init__.py").is_file()
                return (Path(root.name) / inside if package else inside).as_posix()
        return None

    def _is_update(self, path: str) -> bool:
        if path not in self._updates:
            where = Path(path).resolve()
            self._updates[path] = any(
                each == where or each in where.parents for each in _UPDATES_PARAMETERS
            )
        return self._updates[path]


def cell_name(path: str) -> str | None:
    """In[3] for the third cell of a notebook, whose code has a name and no file."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    told = shell.compile.format_code_name(path) if shell is not None else None
    return str(told[1]) if told is not None else None


def read_code(place: Place) -> str:
    text = linecache.getline(place.path, place.line).strip()
    return text if len(text) <= LONGEST_CODE else text[: LONGEST_CODE - 1] + "…"


def _instruction(frame: FrameType) -> Instruction:
    code = frame.f_code
    return code.co_filename, code.co_name, code.co_firstlineno, frame.f_lasti
