"""Where do batches come from? An endless DataLoader whose prefetched batches can be drained."""

from __future__ import annotations

import itertools
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset, Sampler, default_collate

from diagnose.measure.stages.plan import NO_ARITHMETIC, Context, SkipStage, Variant
from diagnose.measure.stages.steps import to_device
from diagnose.records.header import Setting
from diagnose.workload import Batch

PREFETCH_FACTOR = 2
# A worker that sends nothing for so long is taken for dead instead of waited for for ever.
WORKER_TIMEOUT_SECONDS = 60
LONGEST_REFILL_SECONDS = 1.0
# What a job starts with before anything was measured.
USUAL_WORKERS = 2
# Enough that no batch is special, few enough to fit beside the model.
RESIDENT_BATCHES = 8
MOST_RESIDENT_BYTES = 256 * 2**20


@dataclass(frozen=True)
class LoaderConfig:
    """How batches are loaded."""

    workers: int
    storage: str
    pin_memory: bool

    @property
    def settings(self) -> dict[str, Setting]:
        return {
            "workers": self.workers,
            "storage": self.storage,
            "pin_memory": self.pin_memory,
            "prefetch_factor": PREFETCH_FACTOR if self.workers else None,
        }

    @property
    def name(self) -> str:
        """On the CPU nothing is pinned and nothing needs to be said."""
        return f"{self.workers} workers, {self.storage}{', pinned' if self.pin_memory else ''}"

    @property
    def batches_in_flight(self) -> int:
        return self.workers * PREFETCH_FACTOR


class BatchSource:
    """Batches without end. Epochs follow each other as in training, shuffled."""

    def __init__(self, loader: DataLoader[Any], prefetched: int) -> None:
        self._iterator = itertools.chain.from_iterable(itertools.repeat(loader))
        self._prefetched = prefetched
        self._refill_seconds = 0.0

    def next(self) -> Batch:
        return next(self._iterator)

    def drain(self) -> None:
        """Use up what the workers loaded while nobody was waiting, so a slot pays for its own."""
        began = time.monotonic()
        for _ in range(self._prefetched):
            next(self._iterator)
        self._refill_seconds = min(time.monotonic() - began, LONGEST_REFILL_SECONDS)

    def settle(self) -> None:
        """Let the workers fill their queue again, or they would slow the next variant's slot."""
        time.sleep(self._refill_seconds)


@contextmanager
def open_batches(context: Context, config: LoaderConfig) -> Iterator[BatchSource]:
    dataset = context.dataset(config.storage)
    if isinstance(dataset, IterableDataset):
        raise SkipStage(
            "the dataset is an IterableDataset, which has no length and no order of its own; "
            "the loader stages need one with __len__ and __getitem__"
        )
    loader = make_loader(context, config, context.seed)
    if len(loader) == 0:
        raise SkipStage(
            f"the dataset has {len(dataset)} rows, fewer than one batch "
            f"of {context.size.batch_size}"
        )
    yield BatchSource(loader, config.batches_in_flight)


def make_loader(
    context: Context, config: LoaderConfig, seed: int, sampler: Sampler[Any] | None = None
) -> DataLoader[Any]:
    """Rows in the order of the sampler; without one, shuffled."""
    return DataLoader(
        context.dataset(config.storage),
        batch_size=context.size.batch_size,
        shuffle=sampler is None,
        sampler=sampler,
        generator=torch.Generator().manual_seed(seed),
        drop_last=True,  # a short last batch would be a different step
        num_workers=config.workers,
        collate_fn=context.workload.collate,
        pin_memory=config.pin_memory,
        persistent_workers=config.workers > 0,
        prefetch_factor=PREFETCH_FACTOR if config.workers else None,
        timeout=WORKER_TIMEOUT_SECONDS if config.workers else 0,
    )


def require_dataset(context: Context) -> tuple[str, ...]:
    if not context.workload.datasets:
        raise SkipStage(f"workload {context.workload.name} has no datasets")
    return tuple(context.workload.datasets)


def batch_bytes(context: Context, storage: str) -> int:
    """Of one collated batch."""
    dataset = context.dataset(storage)
    if isinstance(dataset, IterableDataset):
        return 0
    collate = context.workload.collate or default_collate
    return tensor_bytes(
        collate([dataset[i] for i in range(min(context.size.batch_size, len(dataset)))])
    )


def shared_memory_shortage(needed_bytes: int) -> str:
    """Workers pass batches through /dev/shm; a full one kills them with a bus error."""
    if not os.path.isdir("/dev/shm"):
        return ""
    free = shutil.disk_usage("/dev/shm").free
    if needed_bytes <= free:
        return ""
    return (
        f"/dev/shm has {free / 1e6:.1f} MB free and the workers may need "
        f"{needed_bytes / 1e6:.1f} MB; enlarge it (docker run --shm-size)"
    )


def needed_bytes(config: LoaderConfig, nbytes: int) -> int:
    """Twice the batches in flight: one set being written while one is being read."""
    return 2 * config.batches_in_flight * nbytes


def tensor_bytes(batch: Batch) -> int:
    if isinstance(batch, torch.Tensor):
        return batch.nbytes
    if isinstance(batch, Mapping):
        return sum(map(tensor_bytes, batch.values()))
    if isinstance(batch, (list, tuple)):
        return sum(map(tensor_bytes, batch))
    return 0


def feeding_config(context: Context, loaders: int = 1) -> LoaderConfig:
    """The loader stage's best, or a usual one if that stage has no answer.

    Where /dev/shm is too small for so many such loaders, loading in the training process itself.
    """
    storage, *_ = require_dataset(context)
    config = LoaderConfig(USUAL_WORKERS, storage, pin_memory=not context.device.is_cpu)
    best = context.hints.loader
    if best is not None:
        workers = best["workers"]
        assert isinstance(workers, int)
        config = LoaderConfig(workers, str(best["storage"]), bool(best["pin_memory"]))
    wanted = loaders * needed_bytes(config, batch_bytes(context, config.storage))
    if config.workers and shared_memory_shortage(wanted):
        return replace(config, workers=0)
    return config


def loading_variant(context: Context, config: LoaderConfig, source: BatchSource) -> Variant:
    """Batches are loaded and dropped."""
    return Variant(
        name=config.name,
        step=source.next,
        settings=context.settings("as stored", **config.settings),
        samples_per_step=context.size.batch_size,
        flops_per_step=NO_ARITHMETIC,
        before_slot=source.drain,
        after_slot=source.settle,
    )


def keep_resident(context: Context, source: BatchSource) -> Callable[[], Batch]:
    """Real batches that are already on the device, over and over: the yardstick for loading.

    A synthetic batch would not do: what is in a batch (padding, labels) changes a step's cost.
    """
    batches: list[Batch] = []
    held = 0
    while len(batches) < RESIDENT_BATCHES and (not batches or held < MOST_RESIDENT_BYTES):
        batches.append(to_device(source.next(), context.device.torch))
        held += tensor_bytes(batches[-1])
    return itertools.cycle(batches).__next__
