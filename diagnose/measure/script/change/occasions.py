"""What if it did not happen this time? Evaluations, checkpoints and log lines, some left out.

They come every so many steps, so no window holds one for sure. Instead every second one of a
pair is left out, in random order, and the steps with one are compared with the steps without.
"""

from __future__ import annotations

import logging
import random
import sys
from collections.abc import Callable, Iterable
from types import CodeType
from typing import Any

import torch

from diagnose.measure.script.change.swaps import (
    can_be_replayed,
    find_functions,
    has_graph,
    put_stand_in,
)
from diagnose.measure.script.patches import Patches
from diagnose.measure.script.watch.suspects import Spine
from diagnose.measure.script.watch.where import Spot
from diagnose.records.script import Occasion, Phase

SEED = 0
_LEFT_OUT: dict[Phase, str] = {
    "evaluation": "it gave back its last result instead of evaluating",
    "checkpoint": "nothing was written",
    "logging": "nothing was logged",
}


class LeftOut:
    """One function that the steps call now and then, left out in about half of them."""

    def __init__(self, code: CodeType, phase: Phase) -> None:
        self.phase = phase
        self.code = code
        self.ran: list[float] = []
        self.left_out: list[float] = []
        self._functions = find_functions(code)
        self._order = random.Random(SEED)
        self._pair: list[bool] = []
        self._result: Any = None
        self._can_be_left_out = False
        self._leaves_out = False
        self._calls = 0

    def install(self, patches: Patches) -> None:
        put_stand_in(patches, self._functions, self._call)

    @property
    def is_left_out(self) -> bool:
        return self._leaves_out and self._calls > 0

    def end_step(self, seconds: float) -> None:
        """All calls of a step are treated alike, and so is everything within a pair."""
        if not self._calls:
            return
        self._calls = 0
        (self.left_out if self._leaves_out else self.ran).append(seconds)
        if not self._pair:
            self._pair = self._order.sample([True, False], 2)
        self._leaves_out = self._pair.pop() and self._can_be_left_out

    def _call(self, original: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        self._calls += 1
        if self._leaves_out:
            return self._result
        result = self._result = original(*args, **kwargs)
        self._can_be_left_out = not has_graph(result)
        return result


class Occasions:
    """Everything that can be left out now and then in this script."""

    def __init__(self, spine: Spine, marks: Iterable[tuple[Spot, ...]], seen: set[Phase]) -> None:
        evaluating = {_entrance(spine, mark) for mark in marks}
        found = [LeftOut(code, "evaluation") for code in evaluating if code is not None]
        if "checkpoint" in seen:
            found += [LeftOut(code, "checkpoint") for code in _writers()]
        if "logging" in seen:
            found.append(LeftOut(logging.Logger.handle.__code__, "logging"))
        self._found = found
        self._steps = 0

    def install(self, patches: Patches) -> None:
        for each in self._found:
            each.install(patches)

    @property
    def leaves_out(self) -> bool:
        """Whether something was left out in this step."""
        return any(each.is_left_out for each in self._found)

    def end_step(self, seconds: float) -> None:
        self._steps += 1
        for each in self._found:
            each.end_step(seconds)

    def record(self) -> list[Occasion]:
        return [
            Occasion(
                each.phase,
                each.code.co_name,
                _LEFT_OUT[each.phase],
                self._steps,
                tuple(each.ran),
                tuple(each.left_out),
            )
            for each in self._found
            if each.ran or each.left_out
        ]


def _entrance(spine: Spine, mark: tuple[Spot, ...]) -> CodeType | None:
    """The function that the step calls to evaluate; an evaluation inside the loop has none."""
    called = [spot.code for spot in mark if spot not in spine]
    return called[-1] if called and can_be_replayed(called[-1]) else None


def _writers() -> list[CodeType]:
    """Functions that write a model, of the libraries that the script has imported."""
    safe = sys.modules.get("safetensors.torch")
    functions = [torch.save, getattr(safe, "save_file", None), getattr(safe, "save_model", None)]
    return [each.__code__ for each in functions if each is not None]
