"""What does this line cost? For a window it runs twice: what that adds, removing it returns.

The function keeps its identity; only its code is exchanged for a copy that is compiled from the
user's own file, so that every line in it keeps its number.
"""

from __future__ import annotations
import __future__

import ast
import gc
import linecache
import sys
import threading
import time
import warnings
from collections.abc import Collection, Iterator
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import Any

from diagnose.measure.lines.source import SourceLines
from diagnose.measure.script.change.stand_ins import find_functions
from diagnose.measure.script.change.twice import WATCH, CannotDouble, double_statement
from diagnose.measure.script.patches import Patches
from diagnose.measure.script.watch.where import Span, Spot, loop_around

# Of the time of the first run. What takes less the second time found its work done: an iterator
# used up, a result kept, a file in memory, a device that had been waited for.
LEAST_OF_SECOND_RUN = 0.5
# The first run of all may be slow for reasons of its own.
FEWEST_RUNS = 3
_COMPREHENSIONS = ("<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>")
_FUTURES = sum(getattr(__future__, name).compiler_flag for name in __future__.all_feature_names)


class Doubling:
    """One statement that runs twice while its patches last."""

    def __init__(self, code: CodeType, line: int, anchors: Collection[int]) -> None:
        self.refused = ""
        self._watch = _Watch()
        self._functions: list[FunctionType] = []
        try:
            self._code = _find_owner(code)
            self._copy, self.lines = _compile_copy(self._code, line, anchors, self._watch)
        except CannotDouble as error:
            self.refused = str(error)
            return
        self._functions = find_functions(self._code)
        if not self._functions:
            self.refused = "the function cannot be found any more"

    def begin(self, patches: Patches) -> None:
        if not self.refused and _runs_for_ever(self._code):
            self.refused = "its function runs around the steps and is not called again"
        if self.refused:
            return
        self._watch.is_inside = False
        for function in self._functions:
            patches.set_code(function, self._copy)
        patches.on_undo(self._compare_runs)

    def _compare_runs(self) -> None:
        if self._watch.does_less:
            self.refused = "running it again costs less: its work was used up, kept or waited for"

    def uses(self) -> int:
        """How often the statement ran twice so far."""
        return self._watch.runs


class _Watch:
    """Called from the copy, around both runs of the statement."""

    absent = (NameError, AttributeError)

    def __init__(self) -> None:
        self.runs = 0
        self.alike = 0  # of these, second runs that took about as long as the first
        self.is_inside = False
        self._kept: dict[str, Any] = {}
        self._lengths: list[tuple[list[Any], int]] = []
        self._first_seconds = 0.0
        self._began = 0.0

    @property
    def does_less(self) -> bool:
        """Whether most second runs had less to do than the first."""
        return self.runs >= FEWEST_RUNS and 2 * self.alike < self.runs

    def enters(self) -> bool:
        """Whether to run it twice: not inside itself, or each recursion would double again."""
        if self.is_inside:
            return False
        self.is_inside = True
        self._kept.clear()
        self._lengths.clear()
        self._began = time.perf_counter()
        return True

    def keep(self, name: str, value: Any) -> None:
        self._kept[name] = value
        if isinstance(value, list):
            self._lengths.append((value, len(value)))
        self._began = time.perf_counter()

    def end_first(self) -> None:
        self._first_seconds = time.perf_counter() - self._began
        for filled, length in self._lengths:
            del filled[length:]
        self._began = time.perf_counter()

    def has(self, name: str) -> bool:
        return name in self._kept

    def kept(self, name: str) -> Any:
        value = self._kept[name]
        self._began = time.perf_counter()
        return value

    def end_second(self, value: Any = None) -> Any:
        seconds = time.perf_counter() - self._began
        self.runs += 1
        self.alike += seconds >= LEAST_OF_SECOND_RUN * self._first_seconds
        self._kept.clear()
        self._lengths.clear()
        self.is_inside = False
        return value


def _find_owner(code: CodeType) -> CodeType:
    """The function that a comprehension is part of, which has code of its own."""
    while code.co_name in _COMPREHENSIONS:
        # By type: asking an object for its class may wake a deprecated one that warns.
        functions = (each for each in gc.get_objects() if type(each) is FunctionType)
        owners = (each.__code__ for each in functions)
        inner = code
        found = next((each for each in owners if any(c is inner for c in each.co_consts)), None)
        if found is None:
            raise CannotDouble("the function around it cannot be found")
        code = found
    return code


def _compile_copy(
    code: CodeType, line: int, anchors: Collection[int], watch: _Watch
) -> tuple[CodeType, Span]:
    """The code in which a statement stands twice, and the lines of that statement."""
    if code.co_name in ("<module>", "<lambda>"):
        raise CannotDouble("it is in no function with a name of its own")
    source = "".join(linecache.getlines(code.co_filename))
    with warnings.catch_warnings():
        # The user has seen those of this file already.
        warnings.simplefilter("ignore")
        try:
            tree = ast.parse(source)
            plain = _compile(tree, code)
        except (SyntaxError, ValueError):
            raise CannotDouble("its file cannot be read as Python") from None
        if not any(_is_same(each, code) for each in _codes_in(plain)):
            raise CannotDouble("its file does not hold the code that runs; has it been changed?")
        lines = double_statement(tree, code, line, anchors)
        doubled = _compile(tree, code)
    copies = [
        each
        for each in _codes_in(doubled)
        if (each.co_name, each.co_firstlineno) == (code.co_name, code.co_firstlineno)
    ]
    if len(copies) != 1 or copies[0].co_freevars != code.co_freevars:
        raise CannotDouble("its copy would not fit into the function")
    constants = tuple(watch if each == WATCH else each for each in copies[0].co_consts)
    return copies[0].replace(co_consts=constants), lines


def _compile(tree: ast.Module, code: CodeType) -> CodeType:
    compiled: CodeType = compile(
        tree, code.co_filename, "exec", flags=code.co_flags & _FUTURES, dont_inherit=True
    )
    return compiled


def _codes_in(code: CodeType) -> Iterator[CodeType]:
    yield code
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from _codes_in(each)


def _is_same(one: CodeType, other: CodeType) -> bool:
    return one == other and list(one.co_lines()) == list(other.co_lines())


def _runs_for_ever(code: CodeType) -> bool:
    """Whether it stands on the stack at or outside the innermost loop, which makes the steps.

    A function inside of that loop is on the stack too, if it ends a step, but is called again.
    """
    lines, in_loop = SourceLines((Path("/"),)), False
    frame: FrameType | None = sys._current_frames().get(threading.main_thread().ident or 0)
    while frame is not None:
        if lines.name(frame.f_code.co_filename) is not None:
            in_loop = in_loop or loop_around(Spot(frame.f_code, frame.f_lineno), ()) is not None
            if in_loop and frame.f_code is code:
                return True
        frame = frame.f_back
    return False
