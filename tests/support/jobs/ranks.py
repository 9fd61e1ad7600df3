"""A job for several ranks, without datasets, that can fail on one of them.

FAULT=quarter: rank 1 runs out of memory at a single sample, so only where the batch is divided.
"""

from __future__ import annotations

import os

import torch
from torch import Tensor, nn

from diagnose.workload import Size
from tests.support.jobs.small import small_job, square


def loss(model: nn.Module, batch: Tensor) -> Tensor:
    divided = len(batch) == 1 and os.environ["RANK"] == "1"
    if divided and os.environ.get("FAULT") == "quarter":
        raise torch.OutOfMemoryError("tried to allocate 9.00 GiB")
    return square(model, batch)


WORKLOAD = small_job("ranks", Size(batch_size=4), width=64, loss=loss)
