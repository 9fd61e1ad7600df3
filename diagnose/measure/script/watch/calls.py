"""What is a model given, and does it learn from it? Noted before each of its outermost calls."""

from __future__ import annotations

import sys
import time
from collections import defaultdict
from typing import Any, Protocol

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass
from torch.utils._pytree import tree_leaves

from diagnose.measure.script.watch.boundary import Boundary, Forwards
from diagnose.measure.script.watch.origins import fetch_items
from diagnose.measure.script.watch.seen import Instruments, Picture, Seen
from diagnose.measure.script.watch.stacks import Seconds, hottest
from diagnose.measure.script.watch.where import Spot

ITEM_SECONDS = 0.5
# What the models of transformers call their tokens.
_TOKENS = ("input_ids", "inputs_embeds")


class Run(Protocol):
    """Whoever watches: its notes are new ones when steps become steps of another kind."""

    seen: Seen
    instruments: Instruments


class ModelCalls:
    """Writes into the notes of a run."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._trained: set[int] = set()
        self._called = 0.0  # when the model was given its latest prefix

    def note_call(
        self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        seen, watch = self._run.seen, self._run.instruments
        if module.training and torch.is_grad_enabled():
            seen.training_calls += 1
            seen.note_rows(module, args, kwargs)
            if id(module) not in self._trained:
                self._trained.update(id(each) for each in module.modules())
                watch.stacks.note_trained(module)
        elif not module.training and id(module) in self._trained:
            mark = tuple(watch.sources.spots(sys._getframe(1)))
            seen.marks.add(mark)
            ends = {spot.code for spot in seen.ends}
            watch.stacks.evaluating |= {spot.code for spot in mark} - ends

    def note_prefix(
        self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """What is generated token by token may be given to the model from its beginning."""
        seen = self._run.seen
        named = next((kwargs[each] for each in _TOKENS if kwargs.get(each) is not None), None)
        # Beside its tokens a model may be given their positions, or a mask that always grows.
        leaves = tree_leaves((args, kwargs) if named is None else named)
        first = next((leaf for leaf in leaves if isinstance(leaf, torch.Tensor)), None)
        if first is None or first.dim() < 2:
            return
        seen.prefix = first.shape[1]
        self._called = time.perf_counter()
        if seen.prefix_spot is None:
            spots = self._run.instruments.sources.spots(sys._getframe(1))
            seen.prefix_spot = spots[0] if spots else None

    def note_prefix_done(self, module: torch.nn.Module) -> None:
        """Where a step is many calls, each of them is timed."""
        seen = self._run.seen
        if seen.prefix:
            seen.note_prefix(time.perf_counter() - self._called)


def why_unmapped(forwards: Forwards, boundary: Boundary) -> str:
    """Why the operators of this script cannot be counted; empty if they can."""
    if forwards.compiled:
        return "the script compiles its model, and compiled code has no operators to count"
    if any(map(is_traceable_wrapper_subclass, boundary.weights())):
        return "its parameters are sharded, and their operators belong to every rank"
    return ""


def look_into_workers(picture: Picture) -> Spot | None:
    """The hottest line of what workers do, which cannot be seen from here: the same items are
    fetched once more.
    """
    hidden = [feed for feed in picture.feeds if feed.workers]
    if not hidden:
        return None
    sampled: Seconds = defaultdict(float)
    with picture.instruments.patches.part() as sampling:
        picture.instruments.stacks.switch_on(sampling, into=sampled)
        for feed in hidden:
            feed.batch_seconds = fetch_items(feed, ITEM_SECONDS)
    return hottest(sampled)
