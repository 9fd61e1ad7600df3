"""What if this function cost nothing? For a window it hands out the results that it gave before.

The function object keeps its identity and only its code is exchanged, so every name that the
script has for it (an import, a method, a default) meets the stand-in.
"""

from __future__ import annotations

import gc
import inspect
from collections.abc import Callable, Sequence
from types import CodeType, FunctionType
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from diagnose.measure.script.patches import Patches

# A function that is called more often per step would spend the window in the stand-in itself.
MOST_RESULTS = 64


def find_functions(code: CodeType) -> list[FunctionType]:
    """Every function that runs this code; closures may have several."""
    return [each for each in gc.get_referrers(code) if isinstance(each, FunctionType)]


def can_be_replayed(code: CodeType) -> bool:
    """Generators and coroutines keep running frames, which have no result to replay."""
    flags = code.co_flags
    running = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
    return not flags & running and code.co_name != "<module>"


StandIn = Callable[[Callable[..., Any], Any, Any], Any]


def put_stand_in(patches: Patches, functions: Sequence[FunctionType], stand_in: StandIn) -> None:
    """The stand-in is given the original, its arguments and its keyword arguments."""
    for function in functions:
        original = FunctionType(
            function.__code__,
            function.__globals__,
            function.__name__,
            function.__defaults__,
            function.__closure__,
        )
        original.__kwdefaults__ = function.__kwdefaults__

        def call(args: Any, kwargs: Any, original: Any = original) -> Any:
            return stand_in(original, args, kwargs)

        patches.set_code(function, _calling(call, function.__code__))


class Swap:
    """One function, first recorded and then replayed."""

    def __init__(self, code: CodeType) -> None:
        self._functions = find_functions(code)
        self._results: list[Any] = []
        self._next = 0
        self.refused = "" if self._functions else "the function cannot be found any more"

    def record(self, patches: Patches) -> None:
        put_stand_in(patches, self._functions, self._recorded)

    def replay(self, patches: Patches) -> None:
        self._next = 0
        put_stand_in(patches, self._functions, self._replayed)

    @property
    def is_ready(self) -> bool:
        return bool(self._results) and not self.refused

    def _recorded(self, original: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        if result is None:
            self.refused = "it returns nothing that could be kept"
        elif has_graph(result):
            self.refused = "its results belong to the graph of their step"
        elif len(self._results) < MOST_RESULTS:
            self._results.append(result)
        else:
            self.refused = f"it runs more than {MOST_RESULTS} times per step"
        return result

    def _replayed(self, original: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        self._next += 1
        return self._results[(self._next - 1) % len(self._results)]


def has_graph(result: object) -> bool:
    """Whether a later step cannot use it: its own backward pass has gone over it."""
    return any(
        isinstance(leaf, torch.Tensor) and leaf.requires_grad for leaf in tree_leaves(result)
    )


def _template(*args: Any, **kwargs: Any) -> Any:
    stand_in: Any = "stand-in"
    return stand_in(args, kwargs)


def _calling(call: Callable[..., Any], code: CodeType) -> CodeType:
    """Code that calls this object, with as many cells as the closure of the function has."""
    template = _template.__code__
    constants = tuple(call if each == "stand-in" else each for each in template.co_consts)
    return template.replace(
        co_consts=constants,
        co_freevars=code.co_freevars,
        co_name=code.co_name,
        co_filename=__file__,
    )
