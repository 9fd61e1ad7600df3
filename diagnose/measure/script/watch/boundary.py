"""Where does a step end? At an optimizer's step, or at a model's call where nothing is trained.

Of several optimizers (a discriminator's and a generator's) the last one before the first comes
round again counts, so that a step is a whole iteration of the script's loop. A step that a
gradient scaler skips is a step. A script that has called its model often without any optimizer
evaluates or generates: each outermost call is a step then, until an optimizer turns up after all.
Processes that the script forks, and its other threads, have no steps of their own.

A model's call is an outermost one of a module: calls of modules inside modules, of other threads,
and those that the backward pass makes to recompute activations are not the script's own. Once the
script compiles anything, calls are not seen any more: the compiler would look through whatever
watches them, and translate again when it is gone.
"""

from __future__ import annotations

import functools
import os
import threading
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from diagnose.measure.script.patches import Patches

# Gradients are rarely accumulated over more calls than this.
FORWARDS_WITHOUT_OPTIMIZER = 20
# An optimizer that steps more rarely beside another (once in so many) does not end an iteration.
RAREST_OF_SEVERAL = 8

OPTIMIZER_STEP = "optimizer step"
MODEL_CALL = "model call"

Before = Callable[[torch.nn.Module, tuple[Any, ...], dict[str, Any]], None]
After = Callable[[torch.nn.Module], None]


class Forwards:
    """Calls its listeners around every outermost module call while it is installed."""

    def __init__(self) -> None:
        self.inside = False
        self.compiled = False  # the script has asked for it
        self._before: list[Before] = []
        self._after: list[After] = []
        self._stays = False  # below something of the script's
        self._thread = threading.get_ident()
        self._installed: Patches | None = None

    def listen(
        self, patches: Patches, before: Before | None = None, after: After | None = None
    ) -> None:
        if before is not None:
            self._before.append(before)
            patches.on_undo(lambda: self._before.remove(before))
        if after is not None:
            self._after.append(after)
            patches.on_undo(lambda: self._after.remove(after))

    def make_way_for_compiler(self, patches: Patches) -> None:
        """From before the script's first line on."""
        ours = self

        def make(original: Any) -> Any:
            @functools.wraps(original)
            def compile_(*args: Any, **kwargs: Any) -> Any:
                ours.compiled = True
                if ours._installed is not None:
                    ours._installed.undo()
                return original(*args, **kwargs)

            return compile_

        patches.put(torch, "compile", make)

    def install(self, patches: Patches) -> None:
        if self._stays or self.compiled:
            return
        original = torch.nn.Module.__call__
        self._installed = patches.part()

        def note() -> None:
            self._stays = torch.nn.Module.__call__ is not original

        self._installed.on_undo(note)
        self._installed.put(torch.nn.Module, "__call__", partial(self._watched, self._installed))

    def _watched(self, patches: Patches, original: Any) -> Any:
        ours = self

        def call(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
            if (
                ours.inside
                or not patches.active
                or threading.get_ident() != ours._thread
                or torch._C._current_autograd_node() is not None
            ):
                return original(module, *args, **kwargs)
            ours.inside = True
            try:
                for before in ours._before:
                    patches.safely(before)(module, args, kwargs)
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
        self._first: weakref.ref[torch.optim.Optimizer] | None = None
        self._last: weakref.ref[torch.optim.Optimizer] | None = None  # of an iteration
        self._previous: weakref.ref[torch.optim.Optimizer] | None = None
        self._firsts_alone = 0  # steps of the first since another one stepped
        self._stepped = False
        self._model: weakref.ref[torch.nn.Module] | None = None
        self._calls = 0
        self._here = os.getpid(), threading.get_ident()

    def install(self, patches: Patches) -> None:
        handle: Any = register_optimizer_step_post_hook(self._after_optimizer)
        patches.on_undo(handle.remove)
        patches.put(torch.amp.GradScaler, "step", self._with_skipped_steps)
        self._forwards.make_way_for_compiler(patches)
        # Where an optimizer steps nobody needs to see the calls, which takes time.
        self._calls_of_models = patches.part()
        self._forwards.install(self._calls_of_models)
        self._forwards.listen(self._calls_of_models, after=self._after_forward)

    @property
    def optimizer(self) -> torch.optim.Optimizer | None:
        """The one that steps last in an iteration."""
        return self._last() if self._last is not None else None

    @property
    def is_of(self) -> tuple[str, int]:
        """Changes when steps become steps of another kind."""
        return self.kind, id(self.optimizer)

    def _is_here(self) -> bool:
        return self._here == (os.getpid(), threading.get_ident())

    def _after_optimizer(self, optimizer: torch.optim.Optimizer, *_: object) -> None:
        self._stepped = True
        if not self._is_here():
            self.elsewhere = True
            return
        self._note_order(optimizer)
        self.optimizers.add(optimizer)
        if self.kind != OPTIMIZER_STEP:
            self.kind = OPTIMIZER_STEP
            self._calls_of_models.undo()
        if self.optimizer is optimizer:
            self.settle()
            self._on_step()

    def _note_order(self, optimizer: torch.optim.Optimizer) -> None:
        """The optimizer that stepped before the first one comes round again ends an iteration."""
        now = weakref.ref(optimizer)
        if self._first is None or self._first() is None or self.optimizer is None:
            self._first = self._last = self._previous = now
            return
        if self._first() is optimizer:
            previous = self._previous() if self._previous is not None else None
            if previous is not None and previous is not optimizer:
                self._last, self._firsts_alone = self._previous, 0
            else:
                self._firsts_alone += 1
                if self._firsts_alone >= RAREST_OF_SEVERAL:
                    self._last = self._first
        self._previous = now

    def _with_skipped_steps(self, original: Any) -> Any:
        """A scaler that finds infinite gradients leaves the optimizer's step out."""

        @functools.wraps(original)
        def step(scaler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            self._stepped = False
            result = original(scaler, optimizer, *args, **kwargs)
            if not self._stepped and isinstance(optimizer, torch.optim.Optimizer):
                self._after_optimizer(optimizer)
            return result

        return step

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
