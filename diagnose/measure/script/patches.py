"""How is a running program changed, and how is nothing of that left?

Every change goes through here, and is undone in reverse order. What the script itself has put on
top of one meanwhile is the script's: it stays as it is, and is named. Ctrl-C waits while a change
is made or undone, so that it never meets half of one.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import CodeType, FunctionType
from typing import Any, ParamSpec, TypeVar

from diagnose.measure.words import one_sentence

_ABSENT: Any = object()
_P = ParamSpec("_P")
T = TypeVar("T")


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """What interrupts the main thread meanwhile interrupts it afterwards.

    Blocking the signals would not do: another thread would take them for this one.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    arrived: list[int] = []
    handlers = {}
    try:
        for number in (signal.SIGTERM, signal.SIGINT):  # Ctrl-C works again last of all
            handler = signal.getsignal(number)
            if callable(handler):  # what Python does nothing about cannot interrupt it
                handlers[number] = handler
                signal.signal(number, lambda number, _: arrived.append(number))
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for late in arrived:
            signal.raise_signal(late)


class Patches:
    """Changes that are undone together."""

    def __init__(self, above: Patches | None = None) -> None:
        # Whoever is left alone below a patch of the script's asks this, and does nothing more.
        self.active = True
        self.left_alone: list[str] = above.left_alone if above is not None else []
        self.faults: list[str] = above.faults if above is not None else []  # of this suite itself
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
        with undisturbed():
            self.active = False
            self._undo.close()

    def safely(self, function: Callable[_P, object]) -> Callable[_P, None]:
        """The function as something that runs beside the script's own work: if it fails, that is
        noted, and the script goes on.
        """

        def call(*args: _P.args, **kwargs: _P.kwargs) -> None:
            try:
                function(*args, **kwargs)
            except Exception as error:
                self.note_fault(error)

        return call

    def note_fault(self, error: Exception) -> None:
        fault = f"{type(error).__name__}: {one_sentence(str(error))}"
        if fault not in self.faults:
            self.faults.append(fault)

    def on_undo(self, function: Callable[[], object]) -> None:
        self._undo.callback(function)

    def enter(self, context: contextlib.AbstractContextManager[T]) -> T:
        with undisturbed():
            return self._undo.enter_context(context)

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

        with undisturbed():
            setattr(owner, name, value)
            self.on_undo(undo)

    def set_code(self, function: FunctionType, code: CodeType) -> None:
        """The function keeps its identity, so every name that the script has for it meets this."""
        earlier = function.__code__

        def undo() -> None:
            if function.__code__ is code:
                function.__code__ = earlier
            else:
                self._leave_alone(function.__qualname__)

        with undisturbed():
            function.__code__ = code
            self.on_undo(undo)

    def _leave_alone(self, name: str) -> None:
        if name not in self.left_alone:
            self.left_alone.append(name)


def _name(owner: Any) -> str:
    if isinstance(owner, type):
        return f"{owner.__module__}.{owner.__qualname__}"
    return getattr(owner, "__name__", type(owner).__name__)
