"""How is a running program changed, and how is nothing of that left?

Every change goes through here, and is undone in reverse order. What the script itself has put on
top of one meanwhile is the script's: it stays as it is, and is named.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, MutableMapping
from types import CodeType, FunctionType
from typing import Any

_ABSENT: Any = object()


class Patches:
    """Changes that are undone together."""

    def __init__(self, above: Patches | None = None) -> None:
        # Whoever is left alone below a patch of the script's asks this, and does nothing more.
        self.active = True
        self.left_alone: list[str] = above.left_alone if above is not None else []
        self._undo = contextlib.ExitStack()
        if above is not None:
            above.on_undo(self.undo)

    def __enter__(self) -> Patches:
        return self

    def __exit__(self, *_: object) -> None:
        self.undo()

    def part(self) -> Patches:
        """Changes that can be undone earlier than these, and are undone with them at the latest."""
        return Patches(self)

    def undo(self) -> None:
        """All of them, even if one fails; a second time does nothing."""
        self.active = False
        self._undo.close()

    def on_undo(self, function: Callable[[], object]) -> None:
        self._undo.callback(function)

    def enter(self, context: contextlib.AbstractContextManager[Any]) -> None:
        self._undo.enter_context(context)

    def put(self, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
        """Exchange a method or function; `make` is given the one that stands there now."""
        self.set(owner, name, make(getattr(owner, name)))

    def set(self, owner: Any, name: str, value: Any) -> None:
        """Exchange an attribute of an object, a class or a module."""
        earlier = vars(owner).get(name, _ABSENT)  # absent: a base class has it

        def undo() -> None:
            if vars(owner).get(name, _ABSENT) is not value:
                self._leave_alone(f"{_name(owner)}.{name}")
            elif earlier is _ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, earlier)

        setattr(owner, name, value)
        self.on_undo(undo)

    def set_item(self, mapping: MutableMapping[str, Any], key: str, value: Any) -> None:
        earlier = mapping.get(key, _ABSENT)

        def undo() -> None:
            if mapping.get(key, _ABSENT) is not value:
                self._leave_alone(repr(key))
            elif earlier is _ABSENT:
                del mapping[key]
            else:
                mapping[key] = earlier

        mapping[key] = value
        self.on_undo(undo)

    def set_code(self, function: FunctionType, code: CodeType) -> None:
        """The function keeps its identity, so every name that the script has for it meets this."""
        earlier = function.__code__

        def undo() -> None:
            if function.__code__ is code:
                function.__code__ = earlier
            else:
                self._leave_alone(function.__qualname__)

        function.__code__ = code
        self.on_undo(undo)

    def _leave_alone(self, name: str) -> None:
        if name not in self.left_alone:
            self.left_alone.append(name)


def _name(owner: Any) -> str:
    if isinstance(owner, type):
        return f"{owner.__module__}.{owner.__qualname__}"
    return getattr(owner, "__name__", type(owner).__name__)
