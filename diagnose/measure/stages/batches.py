"""Where do batches come from? An endless DataLoader whose prefetched batches can be drained."""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import DataLoader, default_collate

from bench.workload import Batch
from diagnose.measure.stages.plan import Context, SkipStage
from diagnose.model import Setting, StageResult

PREFETCH_FACTOR = 2
# A worker that sends nothing for so long is taken for dead instead of waited for for ever.
WORKER_TIMEOUT_SECONDS = 60
# What a job starts with before anything was measured.
USUAL_WORKERS = 2


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
        return f"{self.workers} workers, {self.storage}"


class BatchSource:
    """Batches without end. Epochs follow each other as in training, shuffled."""

    def __init__(self, loader: DataLoader[Any], prefetched: int) -> None:
        self._iterator = itertools.chain.from_iterable(itertools.repeat(loader))
        self._prefetched = prefetched

    def next(self) -> Batch:
        return next(self._iterator)

    def drain(self) -> None:
        """Use up what the workers loaded while nobody was waiting, so a slot pays for its own."""
        for _ in range(self._prefetched):
            next(self._iterator)


@contextmanager
def open_batches(context: Context, config: LoaderConfig) -> Iterator[BatchSource]:
    generator = torch.Generator().manual_seed(context.seed)
    loader: DataLoader[Any] = DataLoader(
        context.dataset(config.storage),
        batch_size=context.size.batch_size,
        shuffle=True,
        generator=generator,
        drop_last=True,  # a short last batch would be a different step
        num_workers=config.workers,
        collate_fn=context.workload.collate,
        pin_memory=config.pin_memory,
        persistent_workers=config.workers > 0,
        prefetch_factor=PREFETCH_FACTOR if config.workers else None,
        timeout=WORKER_TIMEOUT_SECONDS if config.workers else 0,
    )
    if len(loader) == 0:
        raise SkipStage(
            f"the dataset has {len(context.dataset(config.storage))} rows, fewer than one batch "
            f"of {context.size.batch_size}"
        )
    yield BatchSource(loader, config.workers * PREFETCH_FACTOR)


def require_dataset(context: Context) -> tuple[str, ...]:
    if not context.workload.datasets:
        raise SkipStage(f"workload {context.workload.name} has no datasets")
    return tuple(context.workload.datasets)


def shared_memory_shortage(context: Context, config: LoaderConfig) -> str:
    """Workers pass batches through /dev/shm; a full one kills them with a bus error."""
    if config.workers == 0 or not os.path.isdir("/dev/shm"):
        return ""
    collate = context.workload.collate or default_collate
    dataset = context.dataset(config.storage)
    rows = [dataset[i] for i in range(min(context.size.batch_size, len(dataset)))]
    # Twice the batches in flight: one set being written while one is being read.
    need = 2 * config.workers * PREFETCH_FACTOR * tensor_bytes(collate(rows))
    free = shutil.disk_usage("/dev/shm").free
    if need <= free:
        return ""
    return (
        f"{config.name}: not measured, /dev/shm has {free / 1e6:.1f} MB free and the workers may "
        f"need {need / 1e6:.1f} MB; enlarge it (docker run --shm-size)"
    )


def tensor_bytes(batch: Batch) -> int:
    if isinstance(batch, torch.Tensor):
        return batch.nbytes
    if isinstance(batch, dict):
        return sum(map(tensor_bytes, batch.values()))
    if isinstance(batch, (list, tuple)):
        return sum(map(tensor_bytes, batch))
    return 0


def fastest_config(context: Context) -> LoaderConfig:
    """The loader stage's best, or a usual one if that stage has no answer."""
    stage: StageResult | None = context.earlier.get("loader")
    measured = stage.measurements if stage else ()
    if not measured:
        storage = require_dataset(context)[0]
        return LoaderConfig(USUAL_WORKERS, storage, not context.device.is_cpu)
    best = min(measured, key=lambda m: min(m.timing.slot_seconds) / m.timing.steps_per_slot)
    workers = best.settings["workers"]
    assert isinstance(workers, int)
    pinned = bool(best.settings["pin_memory"])
    return LoaderConfig(workers, str(best.settings["storage"]), pinned)
