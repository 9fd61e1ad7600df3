"""What if this had not to be done? Functions, reads and conversions that hand out kept results.

Evaluations, checkpoints and log lines come every so many steps, so no window holds one for sure:
every second one of a pair is left out, in random order, and the steps with one are compared with
the steps without. Values are only kept for the user's own lines: what torch reads for itself (step
counters, scales, norms) decides what its operators do.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import logging
import random
import sys
from collections import defaultdict
from collections.abc import Callable, Collection
from types import CodeType, FrameType
from typing import Any

import torch
from torch._C._autograd import _get_sequence_nr
from torch.utils._pytree import tree_leaves

from diagnose.measure.machine.device import Device
from diagnose.measure.script.change.exchanges import call_counting
from diagnose.measure.script.change.functions import (
    can_be_replayed,
    find_functions,
    put_stand_in,
)
from diagnose.measure.script.patches import Patches
from diagnose.measure.script.watch.clock import StepClock
from diagnose.measure.script.watch.origins import MOST_KEPT, Feeds, nbytes_of
from diagnose.measure.script.watch.seen import Picture
from diagnose.measure.script.watch.suspects import Spine
from diagnose.measure.script.watch.where import Sources, Spot
from diagnose.records.script import Occasion, Phase

# A function that is called more often per step would spend the window in the stand-in itself.
MOST_RESULTS = 64
SEED = 0
_LEFT_OUT: dict[Phase, str] = {
    "evaluation": "it gave back its last result instead of evaluating",
    "checkpoint": "nothing was written",
    "logging": "nothing was logged",
}
# Reads of one number work the same on every device; the others only wait for an accelerator.
_NUMBERS = ("item", "tolist", "__bool__", "__int__", "__float__", "__index__")
_COPIES = ("numpy", "cpu")
# A formatted string asks torch, which asks for the number.
_FORMAT = torch.Tensor.__format__.__code__
# Copies of whole tensors are kept up to here, all together.
MOST_KEPT_BYTES = 100_000_000
_CONVERSIONS = ("to", "cuda", "float", "double", "half", "bfloat16", "type", "contiguous")
LARGE_BATCH_BYTES = 5_000_000

# How it is read, and on which line.
_Site = tuple[str, CodeType, int]


class Swap:
    """One function, first recorded and then replayed."""

    def __init__(self, code: CodeType, several_ranks: bool = False) -> None:
        self.exchanges = 0  # with other ranks
        self.nodes = 0  # of the backward graph that its calls make in one step
        self._counts = several_ranks
        self._functions = find_functions(code)
        self._results: list[Any] = []
        self._next = 0
        self.refused = "" if self._functions else "the function cannot be found any more"

    def record(self, patches: Patches) -> None:
        put_stand_in(patches, self._functions, self._recorded)

    def replay(self, patches: Patches) -> None:
        self._next = 0
        put_stand_in(patches, self._functions, self._replayed)

    @property
    def is_ready(self) -> bool:
        return bool(self._results) and not self.refused

    def _recorded(self, original: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        first = _get_sequence_nr()
        if self._counts:
            result, exchanges = call_counting(original, args, kwargs)
            self.exchanges += exchanges
        else:
            result = original(*args, **kwargs)
        self.nodes += _get_sequence_nr() - first
        if result is None:
            self.refused = "it returns nothing that could be kept"
        elif has_graph(result):
            self.refused = "its results belong to the graph of their step"
        elif len(self._results) < MOST_RESULTS:
            self._results.append(result)
        else:
            self.refused = f"it runs more than {MOST_RESULTS} times per step"
        return result

    def _replayed(self, original: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        self._next += 1
        return self._results[(self._next - 1) % len(self._results)]


def has_graph(result: object) -> bool:
    """Whether a later step cannot use it: its own backward pass has gone over it."""
    return any(
        isinstance(leaf, torch.Tensor) and leaf.requires_grad for leaf in tree_leaves(result)
    )


class LeftOut:
    """One function that the steps call now and then, left out in about half of them."""

    def __init__(self, code: CodeType, phase: Phase) -> None:
        self.phase = phase
        self.code = code
        self.ran: list[float] = []
        self.left_out: list[float] = []
        self.by_all = True  # every rank calls it, so all leave it out together
        self._functions = find_functions(code)
        self._order = random.Random(SEED)
        self._pair: list[bool] = []
        self._result: Any = None
        self._can_be_left_out = False
        self._leaves_out = False
        self._calls = 0
        self._exchanges: int | None = None  # with other ranks, which would wait for them

    @property
    def name(self) -> str:
        return f"{self.phase} {self.code.co_name} {self.code.co_filename}"

    def install(self, patches: Patches) -> None:
        put_stand_in(patches, self._functions, self._call)

    @property
    def is_left_out(self) -> bool:
        return self._leaves_out and self._calls > 0

    def end_step(self, seconds: float) -> list[float] | None:
        """All calls of a step are treated alike, and so is everything within a pair.

        Gives back where the seconds were noted, if this step had a call.
        """
        if not self._calls:
            return None
        self._calls = 0
        noted = self.left_out if self._leaves_out else self.ran
        noted.append(seconds)
        if not self._pair:
            self._pair = self._order.sample([True, False], 2)
        self._leaves_out = self._pair.pop() and self._can_be_left_out
        return noted

    def _call(self, original: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        self._calls += 1
        if self._leaves_out:
            return self._result
        if self.by_all or self._exchanges is not None:
            result = original(*args, **kwargs)
        else:
            result, self._exchanges = call_counting(original, args, kwargs)
        self._result = result
        self._can_be_left_out = not has_graph(result) and (self.by_all or not self._exchanges)
        return result


class Occasions:
    """Everything that can be left out now and then in this script."""

    def __init__(self, device: Device) -> None:
        self._found: list[LeftOut] = []
        self._steps = 0
        # Of the steps since `install`: the device's own time, which corrects what was noted.
        self._clock = StepClock(device)
        self._noted: list[list[tuple[list[float], int]]] = []

    def look_for(self, picture: Picture) -> None:
        """What this picture shows and no earlier one did."""
        seen = {group.phase for group in picture.groups.values()}
        wanted: dict[CodeType, Phase] = {}
        for mark in picture.seen.marks:
            code = _entrance(picture.spine, mark)
            if code is not None:
                wanted[code] = "evaluation"
        if "checkpoint" in seen:
            wanted.update(dict.fromkeys(_writers(), "checkpoint"))
        if "logging" in seen:
            wanted[logging.Logger.handle.__code__] = "logging"
        known = {each.code for each in self._found}
        self._found += [LeftOut(code, phase) for code, phase in wanted.items() if code not in known]

    @property
    def names(self) -> list[str]:
        return [each.name for each in self._found]

    def share(self, by_all: Collection[str]) -> None:
        """What not every rank calls is only left out where no other rank takes part in it."""
        for each in self._found:
            each.by_all = each.name in by_all

    def install(self, patches: Patches) -> None:
        for each in self._found:
            each.install(patches)
        self._noted = []
        self._clock.begin()

    @property
    def leaves_out(self) -> bool:
        """Whether something was left out in this step."""
        return any(each.is_left_out for each in self._found)

    def end_step(self, seconds: float) -> None:
        self._steps += 1
        self._clock.note()
        noted = [each.end_step(seconds) for each in self._found]
        self._noted.append([(each, len(each) - 1) for each in noted if each is not None])

    def record(self) -> dict[str, Occasion]:
        for seconds, noted in zip(self._clock.read(), self._noted, strict=False):
            for each, at in noted:
                each[at] = seconds
        return {
            each.name: Occasion(
                each.phase,
                each.code.co_name,
                _LEFT_OUT[each.phase],
                self._steps,
                tuple(each.ran),
                tuple(each.left_out),
            )
            for each in self._found
            if each.ran or each.left_out
        }


def _entrance(spine: Spine, mark: tuple[Spot, ...]) -> CodeType | None:
    """The function that the step calls to evaluate; an evaluation inside the loop has none."""
    called = [spot.code for spot in mark if spot not in spine]
    return called[-1] if called and can_be_replayed(called[-1]) else None


def _writers() -> list[CodeType]:
    """Functions that write a model, of the libraries that the script has imported."""
    safe = sys.modules.get("safetensors.torch")
    functions = [torch.save, getattr(safe, "save_file", None), getattr(safe, "save_model", None)]
    return [each.__code__ for each in functions if each is not None]


class KeptValues:
    """Reads of device values, recorded in one step and handed out again in later ones."""

    def __init__(self, sources: Sources, device: Device) -> None:
        self._sources = sources
        self._device = device
        self._values: dict[_Site, list[Any]] = defaultdict(list)
        self._reads: dict[_Site, int] = defaultdict(int)
        self._uses = 0
        self._nbytes = 0

    def record(self, patches: Patches) -> None:
        """As long as the patches last, which must be whole steps, every read is noted."""
        self._values.clear()
        self._nbytes = 0
        self._put(patches, self._recorded)

    def replay(self, patches: Patches) -> None:
        """The noted values are handed out in their order, again and again."""
        self._reads.clear()
        self._put(patches, self._replayed)

    def uses(self) -> int:
        """How many reads were answered without reading."""
        return self._uses

    def _put(self, patches: Patches, read: Callable[[_Site, Any, Any, Any, Any], Any]) -> None:
        def make(name: str, original: Any) -> Any:
            def method(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
                site = self._site(name, tensor, sys._getframe(1)) if patches.active else None
                if site is None:
                    return original(tensor, *args, **kwargs)
                return read(site, original, tensor, args, kwargs)

            return method

        for name in _NUMBERS + _COPIES:
            patches.put(torch.Tensor, name, functools.partial(make, name))

    def _site(self, name: str, tensor: torch.Tensor, frame: FrameType) -> _Site | None:
        """Where the user reads this value; None if somebody else does, or nothing is waited for."""
        on_host = tensor.device.type == "cpu"
        if on_host and (name in _COPIES or not self._device.is_cpu):
            return None
        if frame.f_code is _FORMAT and frame.f_back is not None:
            frame = frame.f_back
        if not self._sources.is_users(frame.f_code):
            return None
        return name, frame.f_code, frame.f_lineno

    def _recorded(self, site: _Site, original: Any, tensor: Any, args: Any, kwargs: Any) -> Any:
        value = original(tensor, *args, **kwargs)
        self._nbytes += getattr(value, "nbytes", 0)
        # A result that has a graph belongs to its own step.
        if self._nbytes <= MOST_KEPT_BYTES and not getattr(value, "requires_grad", False):
            self._values[site].append(copy.deepcopy(value))
        return value

    def _replayed(self, site: _Site, original: Any, tensor: Any, args: Any, kwargs: Any) -> Any:
        values = self._values.get(site)
        if not values:
            return original(tensor, *args, **kwargs)
        # Every step reads as often as the recorded one, so the order tells which read this is.
        value = values[self._reads[site] % len(values)]
        self._reads[site] += 1
        self._uses += 1
        return copy.deepcopy(value)  # the script may write into lists and arrays


class KeptCopies:
    """What if the batch were already converted? Conversions of replayed batches give kept results.

    An accelerator must still be handed the batch: that is done from pinned memory, unwaited for.
    """

    def __init__(self, feeds: Feeds) -> None:
        self._feeds = feeds
        self._results: dict[Any, Any] = {}
        self._pinned: dict[Any, torch.Tensor] = {}

    def replay(self, patches: Patches) -> None:
        feeds = list(self._feeds.feeds.values())
        kept = [leaf for feed in feeds for leaf in tree_leaves(feed.batches)]
        storages = {
            each.untyped_storage().data_ptr()
            for each in (*kept, *self._results.values())
            if isinstance(each, torch.Tensor)
        }
        for feed in feeds:
            # A conversion may be several times as large as its batch, and all are kept.
            large = any(nbytes_of(each) > LARGE_BATCH_BYTES for each in feed.batches)
            patches.set(feed, "distinct", 1 if large else MOST_KEPT)
        for name in _CONVERSIONS:
            make = functools.partial(self._keeping, patches, storages, name)
            patches.put(torch.Tensor, name, make)

    def _keeping(self, patches: Patches, storages: set[int], name: str, original: Any) -> Any:
        results = self._results

        def convert(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            memory = tensor.untyped_storage().data_ptr()
            if memory not in storages or not patches.active:
                return original(tensor, *args, **kwargs)
            view = (memory, tensor.storage_offset(), tensor.shape, tensor.stride(), tensor.dtype)
            key = (name, view, str(args), str(kwargs))
            if key not in results:
                result = original(tensor, *args, **kwargs)
                if not isinstance(result, torch.Tensor):
                    return result  # type() asks for a name
                if result.device != tensor.device and result.dtype == tensor.dtype:
                    with contextlib.suppress(RuntimeError):  # not every device knows it
                        self._pinned[key] = tensor.pin_memory()
                # One conversion often follows the other.
                results[key] = result
                storages.add(result.untyped_storage().data_ptr())
            if key in self._pinned:
                copied = torch.empty_like(results[key])  # to() is what this stands in for
                return copied.copy_(self._pinned[key], non_blocking=True)
            return results[key]

        return convert
