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
_CODES: dict[CodeType, Phase] = {
    loading._BaseDataLoaderIter.__next__.__code__: "input",
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
Kind = Phase | Literal["user", "tool", ""]
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


class Stacks(threading.Thread):
    """Samples while it is switched on; `seconds` holds the weight of every stack."""

    def __init__(self, sources: Sources, tools: frozenset[CodeType]) -> None:
        super().__init__(name="diagnose-stacks", daemon=True)
        self.seconds: Seconds = defaultdict(float)
        # Functions that evaluate, and the time spent there or in files: not part of every step.
        self.evaluating: set[CodeType] = set()
        self.aside_seconds = 0.0
        self.busy_seconds = 0.0  # what this thread has taken from the processor
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

    def switch_on(self, patches: Patches, into: Seconds) -> None:
        """Sample until the patches are undone."""
        if not self.is_alive():
            self.start()
        usual = sys.getswitchinterval()
        patches.on_undo(lambda: sys.setswitchinterval(usual))
        sys.setswitchinterval(SWITCH_SECONDS)
        self.seconds = into
        self._last = time.perf_counter()
        patches.on_undo(self._switched_on.clear)
        self._switched_on.set()

    def run(self) -> None:
        wake_on_time()
        while True:
            self._switched_on.wait()
            time.sleep(PERIOD_SECONDS)
            now = time.perf_counter()
            stack = self.read(self._look())
            if stack is not None and self._switched_on.is_set():
                self.seconds[stack] += now - self._last
                if self._is_aside(stack):
                    self.aside_seconds += now - self._last
            self._last = now
            self.busy_seconds = time.thread_time()

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
        return stack.phase in ("checkpoint", "logging") or any(
            spot.code in self.evaluating for spot in stack.spots
        )

    def read(self, instructions: Sequence[Instruction]) -> Stack | None:
        """None while this suite itself is at work between two steps, or where nothing was seen."""
        if not instructions:
            return None
        phase: Phase | None = None
        inside = 0
        spots: list[Spot] = []
        for code, offset in instructions:
            kind = self._kinds.get(code)
            if kind is None:
                kind = self._kinds[code] = self._kind(code)
            if kind == "user":
                spots.append(Spot(code, line_at(code, offset)))
            elif kind == "tool":
                # The user's code below it was called by this suite to be watched.
                return Stack("input", tuple(spots), len(spots)) if spots else None
            elif kind and not (kind == "optimizer" and phase is not None):
                # The outermost decides (a module called by a dataset is input), but not the
                # optimiser, which may call the whole step as its closure.
                phase, inside = kind, len(spots)
        in_torch = instructions[0][0].co_filename.startswith(_TORCH)
        return Stack(phase or "host", tuple(spots), inside, in_torch)

    def _kind(self, code: CodeType) -> Kind:
        if self._sources.is_users(code):
            return "user"
        for part, phase in _FILES:
            if part in code.co_filename:
                return phase
        return ""
