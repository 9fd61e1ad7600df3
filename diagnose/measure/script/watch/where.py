"""Where in the user's code is this? Frames, file names as the user knows them, loops and blocks.

The user's code is everything that is not Python's, not installed and not ours, wherever it lies.
"""

from __future__ import annotations

import ast
import dis
import linecache
import re
from collections.abc import Collection
from functools import cache
from pathlib import Path
from types import CodeType, FrameType
from typing import NamedTuple

from diagnose.measure.lines.source import Place, SourceLines, cell_name, read_code
from diagnose.records.script import Site

_LOOPS = (
    ast.For,
    ast.AsyncFor,
    ast.While,
    ast.ListComp,
    ast.SetComp,
    ast.DictComp,
    ast.GeneratorExp,
)
_BLOCKS = (ast.For, ast.AsyncFor, ast.While, ast.If, ast.With, ast.AsyncWith, ast.Try)


class Spot(NamedTuple):
    """A line of a running function."""

    code: CodeType
    line: int

    @property
    def place(self) -> Place:
        return Place(self.code.co_filename, self.line, self.code.co_name)


class Span(NamedTuple):
    """The lines of a loop or block."""

    first: int
    last: int

    def __contains__(self, line: object) -> bool:
        return isinstance(line, int) and self.first <= line <= self.last


class Sources:
    """The user's files."""

    def __init__(self, start: Path) -> None:
        self.lines = SourceLines((Path("/"),))
        self._start = start.resolve()

    def is_users(self, code: CodeType) -> bool:
        return self.lines.name(code.co_filename) is not None

    def spots(self, frame: FrameType | None) -> list[Spot]:
        """The user's frames from this one outwards."""
        found = []
        while frame is not None:
            if self.is_users(frame.f_code):
                found.append(Spot(frame.f_code, frame.f_lineno))
            frame = frame.f_back
        return found

    def site(self, spot: Spot) -> Site:
        return self.site_of(spot.place)

    def site_of(self, place: Place) -> Site:
        """As the user would name the file from where the script was started."""
        path = Path(place.path).resolve()
        inside = self._start in path.parents
        file = path.relative_to(self._start).as_posix() if inside else str(path)
        file = cell_name(place.path) or file
        return Site(file, place.line, place.function, read_code(place))


@cache
def line_at(code: CodeType, offset: int) -> int:
    """The line of an instruction.

    Some have none. Nobody but a thread that looks on meets one of them, and mostly where Python
    changes threads: at the jump back to the head of a loop, whichever way its body went. That
    moment stands for the whole loop, so that it is the head's; else the instruction before has one.
    """
    lines = [(start, line) for start, _, line in code.co_lines() if start <= offset]
    if lines and lines[-1][1] is None:
        for each in dis.get_instructions(code):
            if each.offset == offset and each.opname.startswith("JUMP") and each.argval < offset:
                return line_at(code, each.argval)
    before = [line for _, line in lines if line is not None]
    return before[-1] if before else code.co_firstlineno


def loop_around(spot: Spot, anchors: Collection[int]) -> Span | None:
    """The outermost loop of this function around the line that contains none of the anchors.

    The anchors are where the step itself goes on (forward, backward, optimizer): a loop around
    them is the training loop, or one of accumulation, not something that a step repeats.
    """
    return _outermost(_LOOPS, spot, anchors)


def loop_of_elements(spot: Spot) -> Span | None:
    """The innermost loop of this function around the line; not one that hands on what it makes."""
    code, line = spot
    around = [
        (span, node)
        for span, node in _nodes(code.co_filename)
        if isinstance(node, _LOOPS) and line in span and span.first >= code.co_firstlineno
    ]
    span, node = max(around, key=lambda each: each[0].first, default=(None, ast.Pass()))
    hands_on = any(isinstance(each, ast.Yield | ast.YieldFrom) for each in ast.walk(node))
    return None if hands_on else span


def block_around(spot: Spot, anchors: Collection[int]) -> Span | None:
    """The outermost block of this function around the line that contains none of the anchors."""
    return _outermost(_BLOCKS, spot, anchors)


def find_statement(path: str, pattern: str) -> int | None:
    """The first line whose code matches."""
    expression = re.compile(pattern)
    for number, text in enumerate(linecache.getlines(path), start=1):
        if expression.search(text.partition("#")[0]):
            return number
    return None


def _outermost(
    kinds: tuple[type[ast.AST], ...], spot: Spot, anchors: Collection[int]
) -> Span | None:
    code, line = spot
    spans = (span for span, node in _nodes(code.co_filename) if isinstance(node, kinds))
    around = [span for span in spans if line in span and span.first >= code.co_firstlineno]
    return min((each for each in around if not any(map(each.__contains__, anchors))), default=None)


@cache
def _nodes(path: str) -> tuple[tuple[Span, ast.AST], ...]:
    try:
        tree = ast.parse("".join(linecache.getlines(path)))
    except (SyntaxError, ValueError):
        return ()
    return tuple(
        (Span(node.lineno, node.end_lineno or node.lineno), node)
        for node in ast.walk(tree)
        if isinstance(node, (*_LOOPS, *_BLOCKS))
    )
