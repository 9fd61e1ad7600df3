"""Does a training step fit this device? Counted before it runs, with tensors that have no memory.

The weights and all that is computed with them are stand-ins that have a shape; the batch, masks and
random numbers are real, because they may decide which work there is. So a model that would fill a
card is counted on any machine, in seconds.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, unset_fake_temporarily
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from diagnose.workload import Size, Workload

# Of the free memory: fragments, workspaces of libraries and the batches of a loader need some too.
USABLE_SHARE = 0.85
# Batches that are counted; a loop over samples takes long with stand-ins.
COUNTED = (4, 8)
# AdamW keeps two numbers for each that it trains.
STATES = 2
_INDEXING = (torch.ops.aten.index.Tensor, torch.ops.aten.index_put.default)


class _Ghosts(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes that stand-ins would take, and the most at any time."""

    def __init__(self, weights: Iterable[torch.Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.peak: int = 0
        self._now = 0
        self._known: set[int] = set()
        for each in weights:
            self._note(each.untyped_storage())

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        given = [each for each in tree_leaves((args, kwargs)) if isinstance(each, torch.Tensor)]
        if not any(isinstance(each, FakeTensor) for each in given):
            with unset_fake_temporarily():
                return func(*args, **kwargs)
        if func in _INDEXING:  # by a mask: how many it finds is known only of a real one
            args = (args[0], _as_numbers(args[1]), *args[2:])
        made = func(*args, **kwargs)
        for each in tree_leaves(made):
            if isinstance(each, FakeTensor):
                self._note(each.untyped_storage())
        return made

    def _note(self, storage: torch.UntypedStorage) -> None:
        key, size = storage._cdata, storage.nbytes()
        if key not in self._known:
            self._known.add(key)
            self._now += size
            self.peak = max(self.peak, self._now)
            weakref.finalize(storage, self._forget, key, size)

    def _forget(self, key: int, size: int) -> None:
        self._known.discard(key)
        self._now -= size


def _as_numbers(indices: Sequence[torch.Tensor | None]) -> list[torch.Tensor | None]:
    found: list[torch.Tensor | None] = []
    for each in indices:
        if each is None or each.dtype is not torch.bool or isinstance(each, FakeTensor):
            found.append(each)
        else:
            with unset_fake_temporarily():
                found.extend(each.nonzero(as_tuple=True))
    return found


def training_bytes(workload: Workload, size: Size) -> int | None:
    """What a float32 training step needs; None where its work depends on what it computes."""
    try:
        batch = workload.synthetic_batch(size, torch.device("cpu"))
        with FakeTensorMode(allow_non_fake_inputs=True) as stand_ins:
            model = workload.model.build(size)
        ghosts = _Ghosts((*model.parameters(), *model.buffers()))
        with stand_ins, ghosts:
            workload.model.loss(model, batch).backward()  # type: ignore[no-untyped-call]
    except Exception:  # whatever a stand-in cannot do; the step itself will tell more
        return None
    trained = [each for each in model.parameters() if each.requires_grad]
    return ghosts.peak + STATES * sum(each.nbytes for each in trained)


def _replica_bytes(workload: Workload, size: Size) -> int:
    """What a further model in training keeps between its steps, under DDP too."""
    with FakeTensorMode():
        weights = [*workload.model.build(size).parameters()]
    trained = sum(each.nbytes for each in weights if each.requires_grad)
    # A gradient is kept twice: by itself, and in the buckets of the exchange.
    return sum(each.nbytes for each in weights) + (2 + STATES) * trained


def fit(workload: Workload, size: Size, free: int, others: int = 0) -> tuple[Size, str]:
    """The size with the largest power of two as its batch that fits, and what was changed.

    Counted for small batches: each further sample needs as much as the one before. `others` is the
    number of further models that are kept meanwhile, and trained in turns with this one.
    """
    counted = [training_bytes(workload, replace(size, batch_size=each)) for each in COUNTED]
    if size.batch_size <= COUNTED[1] or counted[0] is None or counted[1] is None:
        return size, ""
    per_sample = (counted[1] - counted[0]) / (COUNTED[1] - COUNTED[0])
    base = counted[1] + others * _replica_bytes(workload, size)
    needed = base + (size.batch_size - COUNTED[1]) * per_sample
    if needed <= USABLE_SHARE * free:
        return size, ""
    most = COUNTED[1] + (USABLE_SHARE * free - base) / per_sample
    batch = 2 ** int(math.log2(most)) if most > 1 else 1
    kept = f" with {others + 1} models in memory" if others else ""
    return replace(size, batch_size=batch), (
        f"{batch} instead of {size.batch_size}: a training step of that takes about "
        f"{needed / 2**30:.1f} GiB{kept}, and {free / 2**30:.1f} GiB are free"
    )
