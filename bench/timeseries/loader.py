"""How do windows become batches? Through a DataLoader, with or without worker processes."""

from __future__ import annotations

import torch
from torch.utils.data import DataLoader, RandomSampler, Sampler, SequentialSampler

from bench.timeseries.settings import Settings
from bench.timeseries.windows import Sample, Windows

Batch = list[torch.Tensor]  # windows (batch, sequence, features) and targets (batch,)


def open_loader(
    settings: Settings, windows: Windows, device: torch.device, shuffle_seed: int | None = None
) -> DataLoader[Sample]:
    """Batches in the order of time, or in an order that depends on the seed and nothing else."""
    sampler: Sampler[int] = SequentialSampler(windows)
    if shuffle_seed is not None:
        # Its own generator: the loader draws from the default one whenever it starts workers.
        generator = torch.Generator().manual_seed(shuffle_seed)
        sampler = RandomSampler(windows, generator=generator)
    return DataLoader(
        windows,
        settings.batch_size,
        sampler=sampler,
        num_workers=settings.workers,
        # torch refuses both options where there are no workers.
        prefetch_factor=settings.prefetch if settings.workers else None,
        persistent_workers=settings.keep_workers and settings.workers > 0,
        pin_memory=device.type == "cuda",
    )
