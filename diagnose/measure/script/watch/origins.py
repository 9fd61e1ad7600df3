"""Where does the script say how it computes? Its optimizers, double precision, and autocast.

Optimizers and the type of a model are made once, before the steps that suffer from them, so they
are watched from the start.
"""

from __future__ import annotations

import functools
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch

from diagnose.measure.script.patches import Patches
from diagnose.measure.script.watch.where import Sources, Spot


class Origins:
    """Sees who makes an optimizer, converts a model or enters autocast."""

    def __init__(self, sources: Sources) -> None:
        self.double_spot: Spot | None = None
        self._sources = sources
        self._optimizers: dict[int, Spot] = {}
        self._switched_off: Patches | None = None

    def install(self, patches: Patches) -> None:
        patches.put(torch.optim.Optimizer, "__init__", self._noting(self._note_optimizer))
        patches.put(torch.nn.Module, "_apply", self._noting(self._note_conversion))

    def optimizer_spot(self, optimizer: torch.optim.Optimizer | None) -> Spot | None:
        return self._optimizers.get(id(optimizer)) if optimizer is not None else None

    def watch_autocast(self, patches: Patches, noted: Counter[Spot]) -> None:
        """Count which lines enter autocast."""

        def make(original: Any) -> Any:
            def enter(context: Any) -> Any:
                spots = self._sources.spots(sys._getframe(1))
                noted.update(spots[:1])
                if self._switched_off is not None and context._enabled:
                    self._switched_off.set(context, "_enabled", False)
                return original(context)

            return enter

        patches.put(torch.autocast, "__enter__", make)

    def switch_autocast_off(self, patches: Patches) -> None:
        """For whoever enters it from now on."""
        patches.set(self, "_switched_off", patches)

    def _noting(self, note: Callable[[Any, Spot | None], None]) -> Callable[[Any], Any]:
        """A method that calls the original and then notes by whom it was called."""

        def make(original: Any) -> Any:
            @functools.wraps(original)
            def call(subject: Any, *args: Any, **kwargs: Any) -> Any:
                result = original(subject, *args, **kwargs)
                spots = self._sources.spots(sys._getframe(1))
                note(subject, spots[0] if spots else None)
                return result

            return call

        return make

    def _note_optimizer(self, optimizer: torch.optim.Optimizer, spot: Spot | None) -> None:
        if spot is not None:
            self._optimizers[id(optimizer)] = spot

    def _note_conversion(self, module: torch.nn.Module, spot: Spot | None) -> None:
        first = next(module.parameters(), None)
        if first is not None and first.dtype is torch.float64:
            self.double_spot = spot
