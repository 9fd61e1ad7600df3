"""What if nothing had to be read back or converted? Kept results are handed out again.

Values are only kept for the user's own lines: what torch reads for itself (step counters, scales,
norms) decides what its operators do.
"""

from __future__ import annotations

import copy
import functools
import sys
from collections import defaultdict
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from diagnose.measure.machine.device import Device
from diagnose.measure.script.patches import Patches
from diagnose.measure.script.watch.feeds import MOST_KEPT, Feeds, nbytes_of
from diagnose.measure.script.watch.where import Sources

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
    """What if the batch were already there? Conversions of replayed batches give kept results."""

    def __init__(self, feeds: Feeds) -> None:
        self._feeds = feeds
        self._results: dict[Any, Any] = {}

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
                results[key] = result
                # One conversion often follows the other.
                storages.add(result.untyped_storage().data_ptr())
            return results[key]

        return convert
