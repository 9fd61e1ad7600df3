"""Where does the script make what its steps use? Loaders, optimizers, precision.

All of it is watched from before the script's first line: it is made once, and the steps suffer
from it. Batches of a loader are kept, and can be handed out again and again, but only by loaders
that feed the training loop: an evaluation would never end.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import time
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import FrameType
from typing import Any, Literal

import torch
import torch.utils.data.dataloader as loading
from torch.utils._pytree import tree_leaves, tree_map

from diagnose.measure.script.patches import Patches
from diagnose.measure.script.watch.where import Sources, Spot

# Enough that a step does not find its own batch in the caches; more would only cost memory.
MOST_KEPT = 4
MOST_KEPT_BYTES = 100_000_000

Mode = Literal["", "replay", "half"]
_PLAIN_VALUES = (int, float, str, bytes, bool, type(None))


class Origins:
    """Sees who makes an optimizer, converts a model or enters autocast."""

    def __init__(self, sources: Sources) -> None:
        self.double_spot: Spot | None = None
        self.backward_calls = self.steps = 0  # of sampled steps
        self._sources = sources
        self._optimizers: dict[int, Spot] = {}
        self.anomaly_spot: Spot | None = None  # where anomaly detection was switched on
        self._ignores_anomalies = False

    def install(self, patches: Patches) -> None:
        patches.put(torch.nn.Module, "_apply", partial(self._noting_conversion, patches))
        patches.put(torch, "set_anomaly_enabled", partial(self._noting_anomalies, patches))
        note = self._noting(patches.safely(self._note_optimizer))
        patches.put(torch.optim.Optimizer, "__init__", note)

    def optimizer_spot(self, optimizer: torch.optim.Optimizer | None) -> Spot | None:
        return self._optimizers.get(id(optimizer)) if optimizer is not None else None

    def watch_autocast(self, patches: Patches, noted: Counter[Spot]) -> None:
        """Count which lines enter autocast."""

        @patches.safely
        def note(caller: FrameType) -> None:
            noted.update(self._sources.spots(caller)[:1])

        def make(original: Any) -> Any:
            def enter(context: Any) -> Any:
                if context._enabled:  # else one that is there switches it off, or restores that
                    note(sys._getframe(1))
                return original(context)

            return enter

        patches.put(torch.autocast, "__enter__", make)

    def count_backward(self, patches: Patches) -> None:
        """An optimizer's step may come after several backward passes."""

        def make(original: Any) -> Any:
            @functools.wraps(original)
            def backward(*args: Any, **kwargs: Any) -> Any:
                self.backward_calls += 1
                return original(*args, **kwargs)

            return backward

        patches.put(torch.autograd, "backward", make)

    def switch_anomalies_off(self, patches: Patches) -> None:
        """Their detection, now and for whoever switches it on."""
        if torch.is_anomaly_enabled():
            checks = torch.is_anomaly_check_nan_enabled()
            patches.on_undo(lambda: torch.set_anomaly_enabled(True, checks))
            torch.set_anomaly_enabled(False)
        patches.set(self, "_ignores_anomalies", True)  # undone first

    def _noting_anomalies(self, patches: Patches, original: Any) -> Any:
        @patches.safely
        def note(caller: FrameType) -> None:
            self.anomaly_spot = next(iter(self._sources.spots(caller)), self.anomaly_spot)

        @functools.wraps(original)
        def set_enabled(enabled: bool, check_nan: bool = True) -> None:
            if enabled:
                note(sys._getframe(1))
            original(enabled and not self._ignores_anomalies, check_nan)

        return set_enabled

    def _noting(self, note: Callable[[Any, FrameType], None]) -> Callable[[Any], Any]:
        """A method that calls the original and then notes by whom it was called."""

        def make(original: Any) -> Any:
            @functools.wraps(original)
            def call(subject: Any, *args: Any, **kwargs: Any) -> Any:
                result = original(subject, *args, **kwargs)
                note(subject, sys._getframe(1))
                return result

            return call

        return make

    def _note_optimizer(self, optimizer: torch.optim.Optimizer, caller: FrameType) -> None:
        spots = self._sources.spots(caller)
        if spots:
            self._optimizers[id(optimizer)] = spots[0]

    def _noting_conversion(self, patches: Patches, original: Any) -> Any:
        @patches.safely
        def note(was_double: bool, module: torch.nn.Module, caller: FrameType) -> None:
            # Moving a model that has the type already is no conversion.
            if _is_double(module) and not was_double:
                self.double_spot = next(iter(self._sources.spots(caller)), self.double_spot)

        @functools.wraps(original)
        def apply(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
            was_double = _is_double(module)
            result = original(module, *args, **kwargs)
            note(was_double, module, sys._getframe(1))
            return result

        return apply


def _is_double(module: torch.nn.Module) -> bool:
    first = next(module.parameters(), None)
    return first is not None and first.dtype is torch.float64


@dataclass(frozen=True)
class _Made:
    """Where a DataLoader was made, and how."""

    spot: Spot | None
    batch_size: int | None


@dataclass
class Feed:
    """All DataLoaders that one line makes of a data set: a new one for every epoch is the same
    feed, and what a framework makes for evaluation in that line is another.
    """

    spot: Spot | None
    batch_size: int | None
    dataset: weakref.ref[Any] | None
    collate: Any
    workers: int
    prefetched: int
    ways: set[tuple[Spot, ...]] = field(default_factory=set)  # to where its batches are asked for
    trains: int = 0  # batches asked for while a model was being trained,
    evaluates: int = 0  # and while it was in evaluation mode
    batches: list[Any] = field(default_factory=list)
    kept_bytes: int = 0
    served: int = 0
    halves: list[Any] = field(default_factory=list)
    batch_seconds: float = 0.0  # that making one takes in this process
    distinct: int = MOST_KEPT  # so many of the batches are handed out in turn

    def keep(self, batch: Any) -> None:
        if len(self.batches) < MOST_KEPT and self.kept_bytes <= MOST_KEPT_BYTES:
            self.kept_bytes += nbytes_of(batch)
            if self.kept_bytes <= MOST_KEPT_BYTES:
                self.batches.append(batch)

    def serve(self, mode: Mode) -> Any:
        self.served += 1
        batches = self.halves if mode == "half" else self.batches
        kept = batches[self.served % min(self.distinct, len(batches))]
        # A step may take things out of its batch; the tensors themselves are shared.
        return tree_map(lambda leaf: leaf, kept)

    def halve(self) -> bool:
        """Whether its kept batches can be cut in two: nothing but tensors of as many rows each.

        An object of a class that is not known here may hold rows that would not be cut.
        """
        leaves = tree_leaves(self.batches)
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        opaque = [leaf for leaf in leaves if not isinstance(leaf, (torch.Tensor, *_PLAIN_VALUES))]
        rows = {leaf.shape[0] if leaf.dim() else 0 for leaf in tensors}
        if opaque or len(rows) != 1 or min(rows) < 2:
            return False
        half = rows.pop() // 2
        self.halves = tree_map(
            lambda leaf: leaf[:half].clone() if isinstance(leaf, torch.Tensor) else leaf,
            self.batches,
        )
        return True


class Feeds:
    """Sees every DataLoader from its construction on, and serves kept batches on demand."""

    def __init__(self, sources: Sources, *, keeps: bool) -> None:
        self.mode: Mode = ""
        self.is_evaluating: Callable[[], bool] = lambda: False
        self._keeps = keeps
        self.feeds: dict[tuple[Spot, str] | int, Feed] = {}
        self._sources = sources
        # By what both a loader and its iterators hold: a loader may be gone while it is used.
        self._made: weakref.WeakKeyDictionary[Any, _Made] = weakref.WeakKeyDictionary()
        self._replayed: set[int] = set()

    def watch_construction(self, patches: Patches) -> None:
        """From before the script's first line on; it costs nothing per step."""

        @patches.safely
        def note(loader: Any, caller: FrameType) -> None:
            spots = self._sources.spots(caller)
            # A loader class of the user's own ends here from its __init__.
            made = _Made(spots[0] if spots else None, loader.batch_size)
            with contextlib.suppress(TypeError):  # a sampler of the user's may be a plain list
                self._made.setdefault(loader._index_sampler, made)

        def make(original: Any) -> Any:
            @functools.wraps(original)
            def construct(loader: Any, *args: Any, **kwargs: Any) -> None:
                original(loader, *args, **kwargs)
                note(loader, sys._getframe(1))

            return construct

        patches.put(torch.utils.data.DataLoader, "__init__", make)

    def watch_batches(self, patches: Patches) -> None:
        ours = self

        @patches.safely
        def note(iterator: Any, batch: Any, caller: FrameType) -> None:
            feed = ours._feed(iterator)
            evaluates = ours.is_evaluating()
            feed.evaluates += evaluates
            feed.trains += not evaluates
            if len(feed.ways) < MOST_KEPT:
                feed.ways.add(tuple(ours._sources.spots(caller)))
            if ours._keeps:
                feed.keep(batch)

        def make(original: Any) -> Any:
            def advance(iterator: Any) -> Any:
                # An evaluation would never end.
                if ours.mode and not ours.is_evaluating():
                    feed = ours._feed(iterator)
                    if id(feed) in ours._replayed:
                        return feed.serve(ours.mode)
                batch = original(iterator)
                note(iterator, batch, sys._getframe(1))
                return batch

            return advance

        patches.put(loading._BaseDataLoaderIter, "__next__", make)

    def serve(self, patches: Patches, mode: Mode) -> None:
        """Hand out kept batches, whole or halved."""
        patches.set(self, "mode", mode)

    def choose(self, feeds: Sequence[Feed]) -> None:
        """These are replayed from now on, whenever the mode asks for it."""
        self._replayed = {id(each) for each in feeds}

    def _feed(self, iterator: Any) -> Feed:
        sampler = iterator._index_sampler
        try:
            made = self._made.get(sampler, _Made(None, None))
        except TypeError:
            made = _Made(None, None)
        key = (made.spot, _kind(iterator._dataset)) if made.spot is not None else id(sampler)
        if key not in self.feeds:
            workers = int(iterator._num_workers)
            self.feeds[key] = Feed(
                made.spot,
                made.batch_size,
                _weak(iterator._dataset),
                iterator._collate_fn,
                workers,
                workers * int(getattr(iterator, "_prefetch_factor", None) or 0),
            )
        return self.feeds[key]

    def count_served(self) -> int:
        return sum(each.served for each in self.feeds.values())


def fetch_items(feed: Feed, seconds: float) -> float:
    """Make batches here as a worker would, for so long, where a sampler can see it.

    Gives back the seconds that one takes; 0 where none could be made.
    """
    dataset = feed.dataset() if feed.dataset is not None else None
    if dataset is None or not hasattr(dataset, "__getitem__"):
        return 0.0
    each = 0.0
    began, size = time.perf_counter(), feed.batch_size or 1
    # Neither the script's random numbers nor its errors are our business here.
    with torch.random.fork_rng(devices=[]), contextlib.suppress(Exception):
        while time.perf_counter() - began < seconds:
            items, first = [], time.perf_counter()
            for index in range(min(size, len(dataset))):
                items.append(dataset[index])
                if time.perf_counter() - began > seconds:
                    # Of a batch that takes longer than that, a part is known.
                    return each or size / len(items) * (time.perf_counter() - first)
            feed.collate(items if feed.batch_size else items[0])
            each = time.perf_counter() - first
    return each


def nbytes_of(batch: Any) -> int:
    leaves = [leaf for leaf in tree_leaves(batch) if isinstance(leaf, torch.Tensor)]
    return sum(leaf.numel() * leaf.element_size() for leaf in leaves)


def _kind(dataset: Any) -> str:
    """Of data sets that one line gives to loaders: one that is made anew for every epoch is the
    same, and one for evaluation has another size.
    """
    try:
        size = str(len(dataset))
    except TypeError:
        size = ""
    return f"{type(dataset).__qualname__} {size}"


def _weak(value: Any) -> weakref.ref[Any] | None:
    try:
        return weakref.ref(value)
    except TypeError:
        return None
