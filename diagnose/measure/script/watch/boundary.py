"""Where does a step end? At an optimiser's step, or at a model's call where nothing is trained.

The first optimiser that steps counts; others that step beside it (a discriminator's) belong to
the same step. A script that has called its model often without any optimiser evaluates or
generates: each outermost call is a step then, until an optimiser turns up after all. Processes
that the script forks, and its other threads, have no steps of their own.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from diagnose.measure.script.watch.forwards import Forwards

# Gradients are rarely accumulated over more calls than this.
FORWARDS_WITHOUT_OPTIMIZER = 20

OPTIMIZER_STEP = "optimiser step"
MODEL_CALL = "model call"


class Boundary:
    """Tells at every end of a step."""

    def __init__(self, forwards: Forwards, tell: Callable[[], None]) -> None:
        self.kind = ""
        self.settle: Callable[[], None] = _nothing  # runs as part of the step
        self.optimizers: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()
        self._forwards = forwards
        self._tell = tell
        self._optimizer: weakref.ref[torch.optim.Optimizer] | None = None
        self._model: weakref.ref[torch.nn.Module] | None = None
        self._calls = 0
        self.elsewhere = False  # an optimiser stepped in another thread
        self._here = os.getpid(), threading.get_ident()
        self._handle: Any = None

    def install(self) -> None:
        self._handle = register_optimizer_step_post_hook(self._after_optimizer)
        self._forwards.after.append(self._after_forward)
        self._forwards.install()

    def remove(self) -> None:
        self._handle.remove()
        if self._after_forward in self._forwards.after:
            self._forwards.after.remove(self._after_forward)
        self._forwards.remove()

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
            self._forwards.after.remove(self._after_forward)
            self._forwards.remove()
        if self.optimizer is optimizer:
            self.settle()
            self._tell()

    def _after_forward(self, module: torch.nn.Module) -> None:
        if not self._is_here():
            return
        self._calls += 1
        if self._model is None or self._model() is None:
            self._model = weakref.ref(module)
        if self._calls > FORWARDS_WITHOUT_OPTIMIZER and self._model() is module:
            self.kind = MODEL_CALL
            self.settle()
            self._tell()


def _nothing() -> None:
    pass
