"""Which changes of the data path were proposed? Copies, preloading, batched reads, the loader."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, default_collate

from bench.data import tensors
from bench.optimizations.dgca_lab import Batch, rows_of
from bench.optimizations.lab import opened
from diagnose.workload import Lab, Optimization, Side, Trial

PROVEN_BATCHES = 4
# Short epochs, where starting workers again can show.
EPOCH_BATCHES = 16

Read = Callable[[Batch, Sequence[int]], Batch]


# --- 4: the dataset ---


def _clone_rows(rows: Batch, batch: Sequence[int]) -> Batch:
    collated: Batch = default_collate([{k: v[i].clone() for k, v in rows.items()} for i in batch])
    return collated


def _view_rows(rows: Batch, batch: Sequence[int]) -> Batch:
    collated: Batch = default_collate(
        [{k: v[i].contiguous() for k, v in rows.items()} for i in batch]
    )
    return collated


def _index_rows(rows: Batch, batch: Sequence[int]) -> Batch:
    index = torch.tensor(batch)
    return {k: v[index] for k, v in rows.items()}


def _shuffled_batches(lab: Lab) -> list[list[int]]:
    generator = torch.Generator().manual_seed(lab.seed)
    order: list[int] = torch.randperm(lab.size.shape["rows"], generator=generator).tolist()
    size = lab.size.batch_size
    return [order[i : i + size] for i in range(0, len(order) - size + 1, size)]


def _inputs(lab: Lab, hold: tensors.Hold) -> Batch:
    rows = rows_of(lab, hold)
    return {name: rows[name] for name in tensors.INPUTS}


def _reading(text: str, hold: tensors.Hold, read: Read) -> Side:
    def outcome(lab: Lab) -> Batch:
        rows = _inputs(lab, hold)
        return read(rows, list(itertools.chain(*_shuffled_batches(lab)[:PROVEN_BATCHES])))

    def trial(lab: Lab) -> Trial:
        rows = _inputs(lab, hold)
        batches = itertools.cycle(_shuffled_batches(lab))
        return Trial(lambda: read(rows, next(batches)), lab.size.batch_size)

    return Side(text, lambda lab: _per_sample(outcome(lab)), {"batch": opened(trial)})


def _per_sample(batch: Batch) -> dict[str, Tensor]:
    return {f"per sample {name}": each for name, each in batch.items()}


# --- 5: the loader ---


def _loader(lab: Lab, count: int | None = None, **options: Any) -> DataLoader[dict[str, Tensor]]:
    rows = _inputs(lab, "mmap")
    if count is not None:
        rows = {name: each[:count] for name, each in rows.items()}
    generator = torch.Generator().manual_seed(lab.seed)
    return DataLoader(
        tensors.SentencePairs(rows, "preload"),  # the rows as they are, not copied
        batch_size=lab.size.batch_size,
        shuffle=True,
        generator=generator,
        **options,
    )


def _endless(text: str, **options: Any) -> Side:
    """Batches one after the other, epochs without end."""

    def outcome(lab: Lab) -> dict[str, Tensor]:
        # Sorted, because the order of samples is a free choice of every epoch.
        loader = _loader(lab, lab.size.batch_size * PROVEN_BATCHES, drop_last=True, **options)
        return {"sample ids": torch.cat([each["input_ids"].sum(1) for each in loader]).sort()[0]}

    def trial(lab: Lab) -> Trial:
        loader = _loader(lab, drop_last=True, **options)
        batches = itertools.chain.from_iterable(itertools.repeat(loader))
        queued = options.get("num_workers", 0) * options.get("prefetch_factor", 2)

        def use_up_the_queue() -> None:
            for _ in range(queued):
                next(batches)

        return Trial(lambda: next(batches), lab.size.batch_size, before_slot=use_up_the_queue)

    return Side(text, outcome, {"batch": opened(trial)})


def _workers(count: int) -> Side:
    return _endless(f"{count} workers", num_workers=count, persistent_workers=True)


def _prefetching(batches: int) -> Side:
    # Kept between epochs: starting them anew would weigh more than what is tried.
    text = f"2 workers, prefetch {batches}"
    return _endless(text, num_workers=2, prefetch_factor=batches, persistent_workers=True)


def _epochs(text: str, extra_rows: int = 0, **options: Any) -> Side:
    """Whole short epochs, so that what happens between them counts."""

    def count(lab: Lab) -> int:
        return lab.size.batch_size * EPOCH_BATCHES + extra_rows

    def outcome(lab: Lab) -> dict[str, Tensor]:
        loader = _loader(lab, count(lab), **options)
        return {"sample ids": torch.cat([each["input_ids"].sum(1) for each in loader]).sort()[0]}

    def trial(lab: Lab) -> Trial:
        loader = _loader(lab, count(lab), **options)

        def epoch() -> None:
            for _ in loader:
                pass

        return Trial(epoch, lab.size.batch_size * len(loader))

    return Side(text, outcome, {"epoch": opened(trial)})


OPTIMIZATIONS = (
    Optimization(
        key="dataset_clone",
        title="Do not clone every tensor of a row",
        before=_reading("clone() of a mapped row", "mmap", _clone_rows),
        after=_reading("contiguous(), which copies nothing here", "mmap", _view_rows),
    ),
    Optimization(
        key="dataset_preload",
        title="Preload the data instead of mapping the file",
        before=_reading("mapped file", "mmap", _view_rows),
        after=_reading("in memory", "preload", _view_rows),
    ),
    Optimization(
        key="dataset_batched",
        title="Read a batch with one index",
        before=_reading("row by row, then collate", "preload", _view_rows),
        after=_reading("one index per tensor", "preload", _index_rows),
    ),
    Optimization(
        key="loader_workers",
        title="Load in worker processes",
        before=_endless("in the training process"),
        after=_workers(2),
    ),
    Optimization(
        key="loader_workers_4",
        title="Four workers instead of two",
        before=_workers(2),
        after=_workers(4),
    ),
    Optimization(
        key="loader_workers_8",
        title="Eight workers instead of two",
        before=_workers(2),
        after=_workers(8),
    ),
    Optimization(
        key="loader_prefetch",
        title="Prefetch more batches",
        before=_prefetching(2),
        after=_prefetching(4),
    ),
    Optimization(
        key="loader_persistent",
        title="Keep the workers between epochs",
        before=_epochs("2 workers, started anew every epoch", num_workers=2),
        after=_epochs("2 workers, kept", num_workers=2, persistent_workers=True),
    ),
    Optimization(
        key="loader_drop_last",
        title="Drop the short last batch",
        before=_epochs("every sample", extra_rows=1),
        after=_epochs("without the last, short batch", extra_rows=1, drop_last=True),
        # Fewer samples are read, so the sides are compared by time per sample.
        claims_equality=False,
    ),
)
