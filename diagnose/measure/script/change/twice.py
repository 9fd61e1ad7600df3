"""How can a statement of the user's stand twice, and when must it not?

The second run finds what the first one found: names that the statement both reads and sets get
their values back in between, and lists that it appends to their length. `x = layer(x)` would
else run on its own result, and a list of rows come out twice as long.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator
from types import CodeType

from diagnose.measure.script.watch.where import Span

# Stands in the copy for the object that watches both runs, until its constants are exchanged.
WATCH = "\0the watch of both runs"

_Function = ast.FunctionDef | ast.AsyncFunctionDef
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_OBSTACLES: dict[type[ast.AST], str] = {
    ast.Return: "return",
    ast.Yield: "yield",
    ast.YieldFrom: "yield",
    ast.Await: "await",
    ast.AsyncFor: "async for",
    ast.AsyncWith: "async with",
    ast.Raise: "raise",
    ast.Delete: "del",
    ast.Import: "import",
    ast.ImportFrom: "import",
    ast.Global: "global",
    ast.Nonlocal: "nonlocal",
    **dict.fromkeys(_DEFINITIONS, "a definition"),
}
# What fails, takes something away or says something when it runs twice.
_ONCE_METHODS = frozenset(
    (
        *("backward", "step", "zero_grad", "pop", "popleft", "popitem", "remove", "next"),
        *("__next__", "send", "close", "acquire", "recv", "get_nowait"),
    )
)
_ONCE_FUNCTIONS = frozenset(("next", "print", "input"))
_GROWS = frozenset(("append", "extend"))


class CannotDouble(Exception):
    """The message says why this line's work cannot be done twice."""


def double_statement(tree: ast.AST, code: CodeType, line: int, anchors: Collection[int]) -> Span:
    """Change the tree of the file so that the statement at this line of the function runs twice.

    That is the outermost loop around the line without an anchor in it, else the line's own
    statement. Gives back its lines.
    """
    block, place = _choose(_find_function(tree, code), line, anchors)
    statement = block[place]
    obstacle = _find_obstacle(statement)
    if obstacle:
        raise CannotDouble(f"its statement contains {obstacle}")
    block[place] = _write_twice(statement)
    return Span(statement.lineno, statement.end_lineno or statement.lineno)


def _find_function(tree: ast.AST, code: CodeType) -> _Function:
    found = [
        node
        for node in ast.walk(tree)
        if isinstance(node, _Function) and node.name == code.co_name
        if min(each.lineno for each in (node, *node.decorator_list)) == code.co_firstlineno
    ]
    if len(found) != 1:
        raise CannotDouble("it is in no function with a name of its own")
    return found[0]


def _choose(function: _Function, line: int, anchors: Collection[int]) -> tuple[list[ast.stmt], int]:
    """The statement, as the block that it is in and its place there."""
    around = list(_around(function.body, line))
    statements = [block[place] for block, place in around]
    if not around or any(isinstance(each, _DEFINITIONS) for each in statements):
        raise CannotDouble("no statement of the function itself stands on this line")
    for found, statement in zip(around, statements, strict=True):
        is_loop = isinstance(statement, ast.For | ast.While | ast.AsyncFor)
        if is_loop and not any(_covers(statement, each) for each in anchors):
            return found
    block, place = around[-1]
    if any(_blocks(block[place])):
        raise CannotDouble("the line is the head of a block")
    if sum(_covers(each, line) for each in block) > 1:
        raise CannotDouble("several statements stand on this line")
    return block, place


def _around(block: list[ast.stmt], line: int) -> Iterator[tuple[list[ast.stmt], int]]:
    """The statements around the line, from the outermost inwards."""
    for place, statement in enumerate(block):
        if _covers(statement, line):
            yield block, place
            for inner in _blocks(statement):
                yield from _around(inner, line)


def _blocks(statement: ast.stmt) -> Iterator[list[ast.stmt]]:
    parts = (*getattr(statement, "handlers", ()), *getattr(statement, "cases", ()))
    for node in (statement, *parts):
        for name in ("body", "orelse", "finalbody"):
            block = getattr(node, name, None)
            if block:
                yield block


def _covers(statement: ast.stmt, line: int) -> bool:
    return statement.lineno <= line <= (statement.end_lineno or statement.lineno)


def _find_obstacle(statement: ast.stmt) -> str:
    """What would make a second run something else than the first, in the user's words."""
    if _jumps_out(statement):
        return "break or continue of a loop around it"
    for node in ast.walk(statement):
        if node is statement and isinstance(node, ast.Return) and node.value is not None:
            continue  # its value can be made twice
        if type(node) in _OBSTACLES:
            return _OBSTACLES[type(node)]
        if isinstance(node, ast.Call) and _happens_once(node):
            return f"{ast.unparse(node.func)}()"
    return ""


def _jumps_out(node: ast.AST) -> bool:
    if isinstance(node, ast.Break | ast.Continue):
        return True
    inner = node.orelse if isinstance(node, ast.For | ast.While) else ast.iter_child_nodes(node)
    return any(_jumps_out(each) for each in inner)


def _happens_once(call: ast.Call) -> bool:
    if isinstance(call.func, ast.Name):
        return call.func.id in _ONCE_FUNCTIONS
    if not isinstance(call.func, ast.Attribute):
        return False
    # A dictionary is asked for a key, a queue for nothing.
    takes = call.func.attr == "get" and not call.args
    return takes or call.func.attr in _ONCE_METHODS


def _write_twice(statement: ast.stmt) -> ast.If:
    changed, grown = _find_changed(statement)
    twice = _parse(f"if {WATCH!r}.enters():\n pass\nelse:\n pass", statement)
    assert isinstance(twice, ast.If)
    keeps = [
        f"try:\n {WATCH!r}.keep({name!r}, {name})\nexcept {WATCH!r}.absent:\n pass"
        for name in sorted(changed | grown)
    ]
    restores = [
        f"if {WATCH!r}.has({name!r}):\n {name} = {WATCH!r}.kept({name!r})"
        for name in sorted(changed)
    ]
    twice.body = [
        *(_parse(each, statement) for each in keeps),
        _without_return(statement),
        _parse(f"{WATCH!r}.end_first()", statement),
        *(_parse(each, statement) for each in restores),
        *_with_end(statement),
    ]
    twice.orelse = [statement]
    return twice


def _parse(code: str, statement: ast.stmt) -> ast.stmt:
    """A statement that stands where the user's stands."""
    (parsed,) = ast.parse(code).body
    first = dict.fromkeys(("lineno", "end_lineno"), statement.lineno)
    for node in ast.walk(parsed):
        vars(ast.copy_location(node, statement)).update(first)
    return parsed


def _without_return(statement: ast.stmt) -> ast.stmt:
    if isinstance(statement, ast.Return) and statement.value is not None:
        return ast.copy_location(ast.Expr(statement.value), statement)
    return statement


def _with_end(statement: ast.stmt) -> list[ast.stmt]:
    end = _parse(f"{WATCH!r}.end_second()", statement)
    if not isinstance(statement, ast.Return) or statement.value is None:
        return [statement, end]
    assert isinstance(end, ast.Expr)
    assert isinstance(end.value, ast.Call)
    end.value.args.append(statement.value)
    return [ast.copy_location(ast.Return(end.value), statement)]


def _find_changed(statement: ast.stmt) -> tuple[set[str], set[str]]:
    """Names (`x`, `self.x`) that the statement both reads and sets, and lists that it fills."""
    # Variables of a comprehension are its own, whatever they are called.
    inner = {
        node
        for each in ast.walk(statement)
        if isinstance(each, ast.comprehension)
        for node in ast.walk(each.target)
    }
    read, written, grown = set[str](), set[str](), set[str]()
    for node in ast.walk(statement):
        if isinstance(node, ast.AugAssign):
            read.add(_name(node.target))
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if node.func.attr in _GROWS:
                grown.add(_name(node.func.value))
        elif isinstance(node, ast.Name | ast.Attribute) and node not in inner:
            (read if isinstance(node.ctx, ast.Load) else written).add(_name(node))
    return read & written - {""}, grown - {""}


def _name(node: ast.AST) -> str:
    """As `self.x` or `x`; empty for what would have to be computed to be named."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        owner = _name(node.value)
        return f"{owner}.{node.attr}" if owner else ""
    return ""
