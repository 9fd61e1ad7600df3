"""Where does a step end? At an optimizer's step, or at a model's call where nothing is trained.

A script that marks its steps by `diagnose.step()` is believed. One that calls backward() often and
has no optimizer updates its parameters by hand: each call is a step.

Of several optimizers (a discriminator's and a generator's) the last one before the first comes
round again counts, so that a step is a whole iteration of the script's loop. A step that a
gradient scaler skips is a step, and so is the replay of a CUDA graph that holds a whole one. A
script that has called its model often without any optimizer evaluates or generates: each outermost
call is a step then, until an optimizer turns up after all; where an iteration calls it in several
places, those of one of them. A model that calls itself from a method of its own, as `generate()`
does for every token, makes a step with every call of that method.
Processes that the script forks, and its other threads, have no steps of their own.

A model's call is an outermost one of a module: calls of modules inside modules, of other threads,
and those that the backward pass makes to recompute activations are not the script's own. Once the
script compiles anything, calls are not seen any more: the compiler would look through whatever
watches them, and translate again when it is gone.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import sys
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from diagnose.measure.machine.cuda import graph_class
from diagnose.measure.script.patches import Patches

# Gradients are rarely accumulated over more calls than this.
FORWARDS_WITHOUT_OPTIMIZER = 20
# An optimizer that steps more rarely beside another (once in so many) does not end an iteration.
RAREST_OF_SEVERAL = 8

OPTIMIZER_STEP = "optimizer step"
MODEL_METHOD = " call"  # after its name
MODEL_CALL = "model call"
GRAPH_REPLAY = "graph replay"
BACKWARD = "backward pass"
MARKED = "call of diagnose.step()"

# What looks on puts frames of ours and of torch's between those of the script.
_BETWEEN = (
    str(Path(__file__).resolve().parents[3]) + os.sep,
    os.path.dirname(torch.__file__) + os.sep,
)
Place = tuple[tuple[str, int, int], ...]  # file, first line of the function and instruction
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
        self._replayed = 0  # the graph that was replayed since an optimizer's last step
        self._model: weakref.ref[torch.nn.Module] | None = None
        self._calls = 0
        self._places: Counter[Place] = Counter()  # that call the model, and how often
        self._end: Place | None = None  # the one whose calls end a step
        self._calls_since = 0  # then
        self._method: str | None = None  # of the model, which calls the model
        self._method_calls = self._method_depth = 0
        self._backwards = 0
        self._in_backward = False
        self._here = os.getpid(), threading.get_ident()

    def install(self, patches: Patches) -> None:
        handle: Any = register_optimizer_step_post_hook(self._after_optimizer)
        patches.on_undo(handle.remove)
        patches.put(torch.amp.GradScaler, "step", self._with_skipped_steps)
        patches.put(graph_class(), "replay", self._with_replays)
        patches.put(sys.modules["diagnose"], "step", self._marking)
        self._backward_calls = patches.part()
        self._backward_calls.put(torch.Tensor, "backward", self._counting)
        self._forwards.make_way_for_compiler(patches)
        # Where an optimizer steps nobody needs to see the calls, which takes time.
        self._calls_of_models = patches.part()
        self._forwards.install(self._calls_of_models)
        self._forwards.listen(self._calls_of_models, after=self._after_forward)

    @property
    def optimizer(self) -> torch.optim.Optimizer | None:
        """The one that steps last in an iteration."""
        return self._last() if self._last is not None else None

    def weights(self) -> Iterator[torch.Tensor]:
        """Of what is trained, or called."""
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                yield from group["params"]
        model = self._model() if self._model is not None else None
        if model is not None:
            yield from model.parameters()

    @property
    def is_of(self) -> tuple[str, int]:
        """Changes when steps become steps of another kind."""
        return self.kind, id(self.optimizer)

    @property
    def why_untouchable(self) -> str:
        """Why no change could reach a step; empty if one can."""
        is_graph = self.kind == GRAPH_REPLAY
        return "whole steps are replayed as a CUDA graph, out of reach" if is_graph else ""

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """What steps meanwhile is none of the script's."""
        here, self._here = self._here, (0, 0)
        try:
            yield
        finally:
            self._here = here

    def _is_here(self) -> bool:
        return self._here == (os.getpid(), threading.get_ident())

    def _after_optimizer(self, optimizer: torch.optim.Optimizer, *_: object) -> None:
        if not self._is_here():
            self.elsewhere |= any(self._here)
            return
        self._replayed = 0
        self._stepped = True
        self._note_order(optimizer)
        self.optimizers.add(optimizer)
        if self.kind != MARKED and self.optimizer is optimizer:
            self._backward_calls.undo()
            self._end_step(OPTIMIZER_STEP)

    def _end_step(self, kind: str) -> None:
        self.kind = kind
        if kind != MODEL_CALL:
            self._calls_of_models.undo()
        self.settle()
        self._on_step()

    def _marking(self, original: Any) -> Any:
        @functools.wraps(original)
        def step() -> None:
            if self._is_here():
                self._backward_calls.undo()
                self._end_step(MARKED)

        return step

    def _counting(self, original: Any) -> Any:
        @functools.wraps(original)
        def backward(*args: Any, **kwargs: Any) -> Any:
            # A mode that looks on calls this again from inside.
            is_outermost, self._in_backward = not self._in_backward, True
            try:
                result = original(*args, **kwargs)
            finally:
                self._in_backward = not is_outermost
            counts = is_outermost and self.kind in ("", MODEL_CALL, BACKWARD)
            if counts and self._is_here():
                self._backwards += 1
                if self._backwards > FORWARDS_WITHOUT_OPTIMIZER:
                    self._end_step(BACKWARD)
            return result

        return backward

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

    def _with_replays(self, original: Any) -> Any:
        """A graph may hold a part of a step, or, where no optimizer steps in between, all of it."""

        @functools.wraps(original)
        def replay(graph: Any) -> Any:
            result = original(graph)
            if self._is_here():
                again, self._replayed = self._replayed == id(graph), id(graph)
                if again and (self.optimizers or self.kind == GRAPH_REPLAY):
                    self.kind = GRAPH_REPLAY
                    self.settle()
                    self._on_step()
            return result

        return replay

    def _after_forward(self, module: torch.nn.Module) -> None:
        if not self._is_here() or self._backwards:
            return
        self._calls += 1
        if self._model is None or self._model() is None:
            self._model = weakref.ref(module)
        if self._calls > FORWARDS_WITHOUT_OPTIMIZER and self._model() is module:
            if self._method is None:
                self._method = _own_method(module, sys._getframe(1))
                if self._method:
                    self._calls_of_models.put(type(module), self._method, self._of_method)
            # Called once, it may be all that the script does.
            outermost = self._method_calls < 2 or not self._method_depth
            if outermost and self._comes_round(sys._getframe(1)):
                self._end_step(MODEL_CALL)
        elif self._model() is module:
            self._places[_place(sys._getframe(1))] += 1

    def _comes_round(self, frame: FrameType) -> bool:
        """Whether an iteration ends here that may call the model in several places."""
        place = _place(frame)
        self._calls_since += 1
        if self._end is None:
            self._end = max(self._places, key=lambda each: self._places[each], default=place)
        elif self._calls_since > FORWARDS_WITHOUT_OPTIMIZER:
            self._end = place  # the script goes on elsewhere
        if place != self._end:
            return False
        self._calls_since = 0
        return True

    def _of_method(self, original: Any) -> Any:
        @functools.wraps(original)
        def call(model: Any, *args: Any, **kwargs: Any) -> Any:
            if not self._is_here() or self._model is None or model is not self._model():
                return original(model, *args, **kwargs)
            self._method_depth += 1
            try:
                result = original(model, *args, **kwargs)
            finally:
                self._method_depth -= 1
            if not self._method_depth and self._calls_of_models.active:
                self._method_calls += 1
                if self._method_calls >= 2:
                    self.kind = f"{self._method}{MODEL_METHOD}"
                    self.settle()
                    self._on_step()
            return result

        return call


def _place(frame: FrameType | None) -> Place:
    """Where the script is, down to the instruction."""
    found = []
    while frame is not None:
        code = frame.f_code
        if not code.co_filename.startswith(_BETWEEN):
            found.append((code.co_filename, code.co_firstlineno, frame.f_lasti))
        frame = frame.f_back
    return tuple(found)


def _own_method(module: torch.nn.Module, frame: FrameType | None) -> str:
    """The outermost method of this module that its call comes from; empty if there is none."""
    found = ""
    while frame is not None:
        code = frame.f_code
        method = inspect.getattr_static(type(module), code.co_name, None)
        own = getattr(inspect.unwrap(method), "__code__", None) if callable(method) else None
        if own is code and code.co_name != "forward" and not code.co_name.startswith("_"):
            found = code.co_name
        frame = frame.f_back
    return found


def _nothing() -> None:
    pass
