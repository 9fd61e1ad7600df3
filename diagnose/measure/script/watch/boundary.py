"""Where does a step end? At an optimizer's step, or at a model's call where nothing is trained.

The first optimizer that steps counts; others that step beside it (a discriminator's) belong to
the same step. A script that has called its model often without any optimizer evaluates or
generates: each outermost call is a step then, until an optimizer turns up after all. Processes
that the script forks, and its other threads, have no steps of their own.

A model's call is an outermost one of a module: calls of modules inside modules, of other threads,
and those that the backward pass makes to recompute activations are not the script's own.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from diagnose.measure.script.patches import Patches

# Gradients are rarely accumulated over more calls than this.
FORWARDS_WITHOUT_OPTIMIZER = 20

OPTIMIZER_STEP = "optimizer step"
MODEL_CALL = "model call"

Before = Callable[[torch.nn.Module, tuple[Any, ...], dict[str, Any]], None]
After = Callable[[torch.nn.Module], None]


class Forwards:
    """Calls its listeners around every outermost module call while it is installed."""

    def __init__(self) -> None:
        self.inside = False
        self._before: list[Before] = []
        self._after: list[After] = []
        self._stays = False  # below something of the script's
        self._thread = threading.get_ident()

    def listen(
        self, patches: Patches, before: Before | None = None, after: After | None = None
    ) -> None:
        if before is not None:
            self._before.append(before)
            patches.on_undo(lambda: self._before.remove(before))
        if after is not None:
            self._after.append(after)
            patches.on_undo(lambda: self._after.remove(after))

    def install(self, patches: Patches) -> None:
        if self._stays:
            return
        original = torch.nn.Module.__call__

        def note() -> None:
            self._stays = torch.nn.Module.__call__ is not original

        patches.on_undo(note)
        patches.put(torch.nn.Module, "__call__", self._watched)

    def _watched(self, original: Any) -> Any:
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
                for before in ours._before:
                    before(module, args, kwargs)
                result = original(module, *args, **kwargs)
            finally:
                ours.inside = False
            for after in tuple(ours._after):
                after(module)
            return result

        return call


class Boundary:
    """Calls `on_step` at every end of a step."""

    def __init__(self, forwards: Forwards, on_step: Callable[[], None]) -> None:
        self.kind = ""
        self.settle: Callable[[], None] = _nothing  # runs as part of the step
        self.optimizers: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()
        self.elsewhere = False  # an optimizer stepped in another thread
        self._forwards = forwards
        self._on_step = on_step
        self._optimizer: weakref.ref[torch.optim.Optimizer] | None = None
        self._model: weakref.ref[torch.nn.Module] | None = None
        self._calls = 0
        self._here = os.getpid(), threading.get_ident()

    def install(self, patches: Patches) -> None:
        handle: Any = register_optimizer_step_post_hook(self._after_optimizer)
        patches.on_undo(handle.remove)
        # Where an optimizer steps nobody needs to see the calls, which takes time.
        self._calls_of_models = patches.part()
        self._forwards.install(self._calls_of_models)
        self._forwards.listen(self._calls_of_models, after=self._after_forward)

    @property
    def optimizer(self) -> torch.optim.Optimizer | None:
        return self._optimizer() if self._optimizer is not None else None

    def _is_here(self) -> bool:
        return self._here == (os.getpid(), threading.get_ident())

    def _after_optimizer(self, optimizer: torch.optim.Optimizer, *_: object) -> None:
        if not self._is_here():
            self.elsewhere = True
            return
        if self.optimizer is None:
            self._optimizer = weakref.ref(optimizer)
        self.optimizers.add(optimizer)
        if self.kind != OPTIMIZER_STEP:
            self.kind = OPTIMIZER_STEP
            self._calls_of_models.undo()
        if self.optimizer is optimizer:
            self.settle()
            self._on_step()

    def _after_forward(self, module: torch.nn.Module) -> None:
        if not self._is_here():
            return
        self._calls += 1
        if self._model is None or self._model() is None:
            self._model = weakref.ref(module)
        if self._calls > FORWARDS_WITHOUT_OPTIMIZER and self._model() is module:
            self.kind = MODEL_CALL
            self.settle()
            self._on_step()


def _nothing() -> None:
    pass
