"""When does the script call a model? Its outermost module calls, seen from outside.

Calls of modules inside modules, of other threads, and those that the backward pass makes to
recompute activations are not the script's own.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch

Before = Callable[[torch.nn.Module, tuple[Any, ...], dict[str, Any]], None]
After = Callable[[torch.nn.Module], None]


class Forwards:
    """Calls its listeners around every outermost module call while it is installed."""

    def __init__(self) -> None:
        self.before: list[Before] = []
        self.after: list[After] = []
        self.inside = False
        self._original: Any = None
        self._thread = threading.get_ident()

    def install(self) -> None:
        if self._original is not None:
            return
        original = self._original = torch.nn.Module.__call__
        ours = self

        def call(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
            if (
                ours.inside
                or threading.get_ident() != ours._thread
                or torch._C._current_autograd_node() is not None
            ):
                return original(module, *args, **kwargs)
            ours.inside = True
            try:
                for before in ours.before:
                    before(module, args, kwargs)
                result = original(module, *args, **kwargs)
            finally:
                ours.inside = False
            for after in tuple(ours.after):
                after(module)
            return result

        self._ours = call
        torch.nn.Module.__call__ = call  # type: ignore[method-assign]

    def remove(self) -> None:
        """Not if the script has put something of its own on top meanwhile."""
        if self._original is not None and torch.nn.Module.__call__ is self._ours:
            torch.nn.Module.__call__ = self._original  # type: ignore[method-assign]
            self._original = None
