"""Where did the script make its optimisers, and where did a model become double precision?

Both happen once, before the steps that suffer from them, so they are watched from the start.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import torch

from diagnose.measure.script.watch.where import Sources, Spot


class Origins:
    """Sees every construction of an optimiser and every conversion of a model."""

    def __init__(self, sources: Sources) -> None:
        self.double_spot: Spot | None = None
        self._sources = sources
        self._optimizers: dict[int, Spot] = {}
        self._undo: list[Callable[[], None]] = []

    def install(self) -> None:
        self._put(torch.optim.Optimizer, "__init__", self._note_optimizer)
        self._put(torch.nn.Module, "_apply", self._note_conversion)

    def remove(self) -> None:
        while self._undo:
            self._undo.pop()()

    def optimizer_spot(self, optimizer: torch.optim.Optimizer | None) -> Spot | None:
        return self._optimizers.get(id(optimizer)) if optimizer is not None else None

    def _put(self, owner: type, name: str, note: Callable[[Any, Spot | None], None]) -> None:
        """A method of torch's own, exchanged for one that calls it and then notes by whom."""
        original, sources = getattr(owner, name), self._sources

        @functools.wraps(original)
        def call(subject: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(subject, *args, **kwargs)
            spots = sources.spots(sys._getframe(1))
            note(subject, spots[0] if spots else None)
            return result

        setattr(owner, name, call)
        self._undo.append(functools.partial(setattr, owner, name, original))

    def _note_optimizer(self, optimizer: torch.optim.Optimizer, spot: Spot | None) -> None:
        if spot is not None:
            self._optimizers[id(optimizer)] = spot

    def _note_conversion(self, module: torch.nn.Module, spot: Spot | None) -> None:
        first = next(module.parameters(), None)
        if first is not None and first.dtype is torch.float64:
            self.double_spot = spot
