"""What is the main thread doing? Its stack, some hundred times a second, from another thread.

Every sample stands for the time since the one before. torch lets go of the interpreter inside
its operators, so they are sampled while they run.
"""

from __future__ import annotations

import gc
import logging
import os
import sys
import threading
import time
import weakref
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import accumulate, chain, repeat, starmap, takewhile
from operator import attrgetter, is_not, itemgetter
from types import CodeType, FrameType
from typing import Any, Literal, NamedTuple

import torch
import torch.utils.data.dataloader as loading
from torch.autograd.graph import _engine_run_backward

from diagnose.measure.process import wake_on_time
from diagnose.measure.script.patches import Patches
from diagnose.measure.script.watch.where import Sources, Spot, line_at
from diagnose.records.script import Phase

PERIOD_SECONDS = 0.002
# The interpreter hands over after this long. A thread that lets go of it for a moment more often
# than that, as calls of small operators do, would never be asked to, and take it back each time.
SWITCH_SECONDS = 0.00001
MOST_LOOKS = 3

_TORCH = os.path.dirname(torch.__file__) + os.sep
# A loader that begins anew, with its workers if it has any.
_STARTS: tuple[CodeType, ...] = (
    loading.DataLoader.__iter__.__code__,
    loading._MultiProcessingDataLoaderIter.__del__.__code__,
)
_CODES: dict[CodeType, Phase] = {
    loading._BaseDataLoaderIter.__next__.__code__: "input",
    **dict.fromkeys(_STARTS, "input"),
    torch.nn.Module._wrapped_call_impl.__code__: "forward",
    torch.nn.Module._call_impl.__code__: "forward",
    _engine_run_backward.__code__: "backward",
}
_FILES: tuple[tuple[str, Phase], ...] = (
    (_TORCH + "optim" + os.sep, "optimizer"),
    (_TORCH + os.path.join("amp", "grad_scaler.py"), "optimizer"),
    (_TORCH + os.path.join("nn", "utils", "clip_grad.py"), "optimizer"),
    (_TORCH + "serialization.py", "checkpoint"),
    (os.path.join("safetensors", "torch.py"), "checkpoint"),
    (logging.__file__, "logging"),
    (_TORCH + os.path.join("utils", "tensorboard"), "logging"),
    (_TORCH + "distributed" + os.sep, "communication"),
)
_INSTALLED = os.sep + "site-packages" + os.sep
Kind = Phase | Literal["user", "tool", "framework", ""]
Instruction = tuple[CodeType, int]  # and its offset there
# The steps of a walk through frames, none of them written in Python: see Stacks._look.
_OUTWARDS: Any = FrameType.f_back.__get__
_IS_FRAME = partial(is_not, None)
_INSTRUCTION = attrgetter("f_code", "f_lasti")


class Stack(NamedTuple):
    """What one sample saw: the phase, and the user's frames from the innermost outwards."""

    phase: Phase
    spots: tuple[Spot, ...]
    inside: int  # so many of them run inside the phase; the others lead there
    in_torch: bool = False  # the innermost frame of all is torch's own
    evaluates: bool = False  # a model that is trained was in evaluation mode
    beside: CodeType | None = None  # the framework's function that the innermost line led to
    collects: bool = False  # Python's garbage collector ran there
    starts: bool = False  # a loader began anew there

    @property
    def way(self) -> tuple[Spot, ...]:
        return self.spots[self.inside :]


Seconds = dict[Stack, float]


def add_seconds(*parts: Mapping[Stack, float]) -> Seconds:
    total: Seconds = defaultdict(float)
    for part in parts:
        for stack, seconds in part.items():
            total[stack] += seconds
    return total


def hottest(samples: Mapping[Stack, float]) -> Spot | None:
    """The line of the user's that most of them saw."""
    lines: dict[Spot, float] = defaultdict(float)
    for stack, seconds in samples.items():
        if stack.spots:
            lines[stack.spots[0]] += seconds
    return max(lines, key=lambda spot: lines[spot], default=None)


class Stacks(threading.Thread):
    """Samples while it is switched on; `seconds` holds the weight of every stack."""

    def __init__(self, sources: Sources, tools: frozenset[CodeType]) -> None:
        super().__init__(name="diagnose-stacks", daemon=True)
        self.seconds: Seconds = defaultdict(float)
        # Functions that evaluate, and the time spent there or in files: not part of every step.
        self.evaluating: set[CodeType] = set()
        self.aside_seconds = 0.0
        self.by_phase: dict[str, float] = defaultdict(float)
        self.busy_seconds = 0.0  # what this thread has taken from the processor
        # Models that are trained: while one of them is in evaluation mode, it is evaluated.
        self._models: list[weakref.ref[torch.nn.Module]] = []
        self._sources = sources
        self._kinds: dict[CodeType, Kind] = dict.fromkeys(tools, "tool")
        self._kinds.update(_CODES)
        self._main = threading.get_ident()
        frame = sys._getframe()
        while frame.f_back is not None:
            frame = frame.f_back
        self._outermost = frame.f_code
        self._switched_on = threading.Event()
        self._last = 0.0
        self._collecting = 0.0  # since when the garbage collector runs
        self._collected = 0.0  # seconds of it that no sample has told of

    def switch_on(self, patches: Patches, into: Seconds) -> None:
        """Sample until the patches are undone."""
        if not self.is_alive():
            self.start()
        usual = sys.getswitchinterval()
        patches.on_undo(lambda: sys.setswitchinterval(usual))
        sys.setswitchinterval(SWITCH_SECONDS)
        self.seconds = into
        gc.callbacks.append(self._note_collection)
        patches.on_undo(lambda: gc.callbacks.remove(self._note_collection))
        self._collected = 0.0
        self._last = time.perf_counter()
        patches.on_undo(self._switched_on.clear)
        self._switched_on.set()

    def count_as(self, code: CodeType, phase: Phase) -> None:
        """What this function of the suite waits for is work of a phase."""
        self._kinds[code] = phase

    def note_trained(self, model: torch.nn.Module) -> None:
        """Called to be trained for the first time; a loss without parameters has no mode."""
        if next(model.parameters(), None) is not None:
            self._models.append(weakref.ref(model))

    def note_end_of_step(self) -> None:
        """A model that is updated in evaluation mode says nothing by its mode."""
        if self.evaluates:
            self._models = [each for each in self._models if (model := each()) and model.training]

    @property
    def models(self) -> list[torch.nn.Module]:
        """That are trained."""
        return [model for each in self._models if (model := each()) is not None]

    @property
    def evaluates(self) -> bool:
        """By the mode of the models alone, whoever has set it."""
        return any(not model.training for model in self.models)

    def run(self) -> None:
        wake_on_time()
        while True:
            self._switched_on.wait()
            time.sleep(PERIOD_SECONDS)
            now = time.perf_counter()
            stack = self.read(self._look())
            if stack is not None and self._switched_on.is_set():
                self._add(stack, now - self._last)
            self._last = now
            self.busy_seconds = time.thread_time()

    def _add(self, stack: Stack, seconds: float) -> None:
        """No sample is taken while the collector runs; the next one comes where it was called, and
        may come before its end is noted.
        """
        if self._collecting:
            now = time.perf_counter()
            self._collected += now - self._collecting
            self._collecting = now
        collected, self._collected = min(self._collected, seconds), 0.0
        if collected:
            self.seconds[stack._replace(collects=True)] += collected
            self.by_phase["garbage"] += collected
        self.seconds[stack] += seconds - collected
        is_aside = self._is_aside(stack)
        evaluates = is_aside and stack.phase not in ("checkpoint", "logging")
        self.by_phase["evaluation" if evaluates else stack.phase] += seconds - collected
        if is_aside:
            self.aside_seconds += seconds

    def _note_collection(self, phase: str, _: object) -> None:
        """For gc.callbacks."""
        now = time.perf_counter()
        if phase == "start":
            self._collecting = now
        elif self._collecting:
            self._collected += now - self._collecting
            self._collecting = 0.0

    def _look(self) -> list[Instruction]:
        """Where the main thread is, from its innermost frame outwards, all of one moment.

        The interpreter changes threads only between instructions of Python. So the walk is a chain
        of iterators of the C library, which one instruction runs to its end: a frame that the main
        thread leaves meanwhile would lead into another moment, or into freed memory.
        """
        for _ in range(MOST_LOOKS):
            innermost = map(itemgetter(self._main), starmap(sys._current_frames, ((),)))
            frames = accumulate(chain(innermost, repeat(FrameType)), _OUTWARDS)
            # A garbage collection while a frame object is made may run Python, and the main thread
            # goes on: the way out is lost then, or the interpreter crashes (CPython's GH-97002).
            collects = gc.isenabled()
            gc.disable()
            found = list(map(_INSTRUCTION, takewhile(_IS_FRAME, frames)))
            if collects:
                gc.enable()
            if found[-1][0] is self._outermost:
                return found
        return []

    def _is_aside(self, stack: Stack) -> bool:
        return (
            stack.evaluates
            or stack.phase in ("checkpoint", "logging")
            or any(spot.code in self.evaluating for spot in stack.spots)
        )

    def read(self, instructions: Sequence[Instruction]) -> Stack | None:
        """None while this suite itself is at work between two steps, or where nothing was seen."""
        if not instructions:
            return None
        phase: Phase | None = None
        beside: CodeType | None = None
        previous: Kind = ""
        inside, starts = 0, False
        spots: list[Spot] = []
        for code, offset in instructions:
            kind = self._kinds.get(code)
            if kind is None:
                kind = self._kinds[code] = self._kind(code)
            if kind == "user":
                spots.append(Spot(code, line_at(code, offset)))
            elif kind == "framework":
                beside = beside or (None if spots else code)
            elif kind == "tool":
                # The user's code below it was called by this suite to be watched.
                return Stack("input", tuple(spots), len(spots)) if spots else None
            elif kind and not (
                kind == "optimizer"
                and (phase is not None or (spots and not _is_own_step(code, previous)))
            ):
                # The outermost decides (a module called by a dataset is input), but not the
                # optimiser, which may call the whole step as its closure.
                phase, inside, starts = kind, len(spots), code in _STARTS
            previous = kind or previous  # a decorator of torch's own may stand between
        in_torch = instructions[0][0].co_filename.startswith(_TORCH)
        phase = phase or "host"
        return Stack(phase, tuple(spots), inside, in_torch, self.evaluates, beside, starts=starts)

    def _kind(self, code: CodeType) -> Kind:
        if self._sources.is_users(code):
            return "user"
        for part, phase in _FILES:
            if part in code.co_filename:
                return phase
        is_torch = code.co_filename.startswith(_TORCH)
        return "framework" if _INSTALLED in code.co_filename and not is_torch else ""


def _is_own_step(code: CodeType, previous: Kind) -> bool:
    """Whether torch calls the step of an optimizer of the user's own, and no closure."""
    return previous == "user" and code.co_name == "wrapper"
