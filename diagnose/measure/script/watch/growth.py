"""What becomes more from step to step? Containers that the loop keeps, graphs, and memory.

Looked at between steps, in the frames that are on the stack there: a list that only grows is
found by its name, and the line that fills it by that name.
"""

from __future__ import annotations

import os
import re
import sys
import types
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from diagnose.measure.lines.source import Place
from diagnose.measure.machine.device import Device
from diagnose.measure.script.watch.where import Sources, find_statement

_CONTAINERS = (list, dict, set, deque)
# Whose arrays and tables have a shape.
_TABLES = ("numpy", "pandas")
# In a list of so many, such as that of callbacks, each is looked into.
MOST_ELEMENTS = 32
# Hooks have no name in the script: they are kept by the modules of a model.
HOOKS = "hooks"
HOOK_TABLES = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
# A graph that is longer than this has been growing, or belongs to a very deep model.
_DEEPEST = 20_000
# Looked at between so many steps, so that what is filled and emptied in turns is not taken for
# growth.
FEWEST_LOOKS = 5


@dataclass
class Growing:
    """One thing that has a length, over several looks."""

    name: str
    path: str
    holds_tensors: bool
    holds_graph: bool = False  # tensors that a backward pass could go through
    lengths: list[int] = field(default_factory=list)
    at: list[int] = field(default_factory=list)

    @property
    def names(self) -> list[str]:
        """That work would use which has to do with it; a part of a model has one of its own."""
        return self.name.split(".")[1:] or [self.name]

    @property
    def per_step(self) -> float:
        steps = self.at[-1] - self.at[0]
        return (self.lengths[-1] - self.lengths[0]) / steps if steps else 0.0

    @property
    def only_grows(self) -> bool:
        pairs = zip(self.lengths, self.lengths[1:], strict=False)
        return len(self.lengths) >= FEWEST_LOOKS and all(a < b for a, b in pairs)

    @property
    def filler(self) -> Place | None:
        """The line that fills it."""
        name = re.escape(self.name.rpartition(".")[2])
        pattern = (
            r"\.register_\w*hook\("
            if name == HOOKS
            else (
                rf"\b{name}\s*(\.(append|appendleft|extend|add|insert|update|setdefault)\(|\+=|\[.*\]\s*=[^=])"
                rf"|\b{name}\s*=\s*.*\b{name}\b"
            )
        )
        line = find_statement(self.path, pattern)
        return None if line is None else Place(self.path, line, "")


class Lengths:
    """The lengths of everything that the frames of the loop can name."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources
        # By their names: a list that is exchanged for an empty one has not grown.
        self._seen: dict[tuple[object, str], Growing] = {}

    def look(
        self, frame: FrameType | None, step: int, models: Iterable[torch.nn.Module] = ()
    ) -> None:
        """`models` are those that are trained: a framework may hold the only name of one."""
        met: set[CodeType] = set()
        for model in models:
            home = getattr(sys.modules.get(type(model).__module__), "__file__", None) or ""
            for name, value in _parts(type(model).__name__, model):
                self._note(type(model), name, home, value, step)
        while frame is not None:
            code = frame.f_code
            if self._sources.is_users(code) and code not in met:
                met.add(code)  # a function that calls itself has several things of one name
                for name, value, home in self._named(frame):
                    self._note(code, name, home or code.co_filename, value, step)
            frame = frame.f_back

    def _named(self, frame: FrameType) -> Iterator[tuple[str, Any, str]]:
        """What the frame can name, and the members of that; of objects of the user's theirs too,
        with the file of their class.
        """
        scope = frame.f_globals if frame.f_code.co_name == "<module>" else frame.f_locals
        for name, value in list(scope.items()):
            if name.startswith("__"):
                continue
            yield name, value, ""
            if isinstance(value, torch.nn.Module):
                yield from ((part, each, "") for part, each in _parts(name, value))
            for member, each in _members(value):
                yield f"{name}.{member}", each, ""
                few = isinstance(each, list | tuple) and len(each) <= MOST_ELEMENTS
                for one in each if few else (each,):
                    home = getattr(sys.modules.get(type(one).__module__), "__file__", None)
                    if home and self._sources.lines.name(home) is not None:
                        path = (
                            f"{name}.{member}.{type(one).__name__}" if few else f"{name}.{member}"
                        )
                        yield from ((f"{path}.{a}", b, home) for a, b in _members(one))

    def _note(self, owner: object, name: str, path: str, value: Any, step: int) -> None:
        length = _length(value)
        if length:
            seen = self._seen.setdefault((owner, name), Growing(name, path, _holds(value)))
            seen.holds_graph |= _has_graph(value)
            seen.lengths.append(length)
            seen.at.append(step)

    def growing(self) -> list[Growing]:
        """What only grows; those with tensors first, then the fastest."""
        found = [each for each in self._seen.values() if each.only_grows]
        return sorted(found, key=lambda each: (not each.holds_tensors, -each.per_step))


def resident_bytes(device: Device) -> int:
    footprint = device.footprint()
    if footprint is not None:
        return footprint
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


def _members(value: Any) -> list[tuple[str, Any]]:
    members = getattr(value, "__dict__", None)
    plain = not isinstance(value, type | types.ModuleType | types.FunctionType | torch.nn.Module)
    return list(members.items()) if isinstance(members, dict) and plain else []


def _parts(name: str, model: torch.nn.Module) -> Iterator[tuple[str, Any]]:
    """Its hooks, and what its modules keep: a metric, say, all that it was given."""
    modules = dict(model.named_modules())
    hooks = [
        hook for each in modules.values() for kind in HOOK_TABLES for hook in getattr(each, kind)
    ]
    yield f"{name}.{HOOKS}", hooks
    for path, module in modules.items():
        for member, each in list(vars(module).items()):
            if isinstance(each, _CONTAINERS) and not member.startswith("_"):
                yield ".".join(filter(None, (name, path, member))), each


def _length(value: Any) -> int:
    if isinstance(value, _CONTAINERS):
        return len(value)
    if isinstance(value, torch.Tensor):
        return _depth(value) if value.grad_fn is not None else max(value.shape, default=0)
    if type(value).__module__.partition(".")[0] in _TABLES:
        return max(getattr(value, "shape", ()), default=0)
    return 0


def _holds(value: Any) -> bool:
    """Whether the first element is a tensor, or has one."""
    if isinstance(value, torch.Tensor):
        return True
    if not isinstance(value, _CONTAINERS):
        return False
    first = next(iter(value.values() if isinstance(value, dict) else value), None)
    return any(isinstance(leaf, torch.Tensor) for leaf in tree_leaves(first))


def _has_graph(value: Any) -> bool:
    """Of a container the newest element speaks: early ones may have been detached."""
    if isinstance(value, list | deque):
        value = value[-1]
    elif isinstance(value, dict):
        value = next(reversed(value.values()))
    leaves = tree_leaves(value) if not isinstance(value, set) else ()
    return any(isinstance(leaf, torch.Tensor) and leaf.grad_fn is not None for leaf in leaves)


def _depth(tensor: torch.Tensor) -> int:
    node: Any = tensor.grad_fn
    depth = 0
    while node is not None and depth < _DEEPEST:
        depth += 1
        node = node.next_functions[0][0] if node.next_functions else None
    return depth
