"""Is the batch too small? A copy of the model, given a batch and half of it, between two steps.

For scripts whose batches come from anything but a DataLoader, which would hand out halves itself.
What does not get shorter is paid per step, whatever the batch. The script's own model, its random
numbers and its hooks are not touched.
"""

from __future__ import annotations

import copy
import sys
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch.utils._pytree import tree_leaves, tree_map

from diagnose.measure.script.patches import Patches
from diagnose.measure.script.watch.boundary import Forwards
from diagnose.measure.script.watch.growth import HOOK_TABLES
from diagnose.measure.script.watch.seen import Picture
from diagnose.measure.script.watch.where import Sources, Spot
from diagnose.records.script import Change, Window
from diagnose.records.stats import FEWEST_FOR_INTERVAL

WHOLE, HALF = "whole batch on a copy", "half of it on a copy"
_WHAT = (
    "a copy of the model was given half of a batch: what does not get shorter is paid per step, "
    "whatever the batch"
)
MOST_COPIED_BYTES = 100_000_000
# Of one side, in one go: what is shorter is repeated.
SECONDS = 0.01


class _Call(NamedTuple):
    """Of a model that learns."""

    model: torch.nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    rows: int
    way: Sequence[Spot]


class Halves:
    """Notes what the largest model of a step is given, and times a copy of it."""

    def __init__(self, forwards: Forwards, sources: Sources) -> None:
        self._forwards = forwards
        self._sources = sources
        self._call: _Call | None = None
        self._weights = 0

    def record(self, patches: Patches) -> None:
        self._forwards.listen(patches, before=self._note)

    def _note(self, model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        leaves = (leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor))
        first = next(leaves, None)
        learns = model.training and torch.is_grad_enabled() and not torch.is_autocast_enabled("cpu")
        # A loss is given what a model has made.
        if not learns or first is None or not first.dim() or first.grad_fn is not None:
            return
        weights = sum(each.nbytes for each in model.parameters())
        if self._weights < weights <= MOST_COPIED_BYTES and first.shape[0] > 1:
            way = tuple(self._sources.spots(sys._getframe(1)))
            self._call, self._weights = _Call(model, args, kwargs, first.shape[0], way), weights

    def time(self, picture: Picture, block: int) -> tuple[Change, list[Window]] | None:
        """A step of whole batches and one of halves, as windows; None if no copy can be made."""
        call = self._call
        if call is None or not picture.instruments.device.is_cpu:
            return None
        phases = picture.phases
        update, host = phases.get("optimizer", 0.0), phases.get("host", 0.0)
        model_seconds = _time_copy(call)
        if model_seconds is None:
            return None
        windows = []
        for number, (whole, half) in enumerate(model_seconds):
            # What the script does beside is taken to grow with the batch.
            windows.append(Window(block + number, WHOLE, 1, whole + update + host))
            windows.append(Window(block + number, HALF, 1, half + update + host / 2))
        spot = next((each for each in call.way if each in picture.spine), None)
        return Change(HALF, "batch", WHOLE, _WHAT, picture.site(spot), samples=0.5), windows


def _time_copy(call: _Call) -> list[tuple[float, float]] | None:
    whole = call.args, call.kwargs
    half = tree_map(lambda leaf: _cut(leaf, call.rows), whole)
    pairs = []
    # Whatever a model does that cannot be copied, or not be given half: then nothing is known.
    try:
        model = copy.deepcopy(call.model)
        for module in model.modules():
            for hooks in HOOK_TABLES:
                getattr(module, hooks).clear()
        repeats = 1
        with torch.random.fork_rng(devices=[]):
            for number in range(-2, FEWEST_FOR_INTERVAL):
                pair = _time(model, whole, repeats), _time(model, half, repeats)
                if number < 0:  # warm, and long enough for the clock
                    repeats = max(1, min(50, round(SECONDS / max(pair[0], 1e-6))))
                else:
                    pairs.append(pair)
    except Exception:
        return None
    return pairs


def _cut(leaf: Any, rows: int) -> Any:
    has_rows = isinstance(leaf, torch.Tensor) and leaf.dim() and leaf.shape[0] == rows
    return leaf[: rows // 2].clone() if has_rows else leaf


def _time(model: torch.nn.Module, given: tuple[Any, Any], repeats: int) -> float:
    args, kwargs = given
    began = time.perf_counter()
    for _ in range(repeats):
        made = model(*args, **kwargs)
        parts = [leaf.sum() for leaf in tree_leaves(made) if _learns(leaf)]
        torch.stack(parts).sum().backward()  # type: ignore[no-untyped-call]
        model.zero_grad()
    return (time.perf_counter() - began) / repeats


def _learns(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor) and leaf.requires_grad
