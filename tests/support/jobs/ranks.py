"""A job for several ranks, without datasets, that can fail on one of them.

FAULT=quarter: rank 1 runs out of memory at a single sample, so only where the batch is divided.
"""

from __future__ import annotations

import os

import torch
from torch import Tensor, nn

from diagnose.workload import Network, Size, Workload

WIDTH = 64


def build(size: Size) -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 1))


def loss(model: nn.Module, batch: Tensor) -> Tensor:
    divided = len(batch) == 1 and os.environ["RANK"] == "1"
    if divided and os.environ.get("FAULT") == "quarter":
        raise torch.OutOfMemoryError("tried to allocate 9.00 GiB")
    result: Tensor = model(batch).square().mean()
    return result


def synthetic_batch(size: Size, device: torch.device) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(size.batch_size, WIDTH, generator=generator).to(device)


WORKLOAD = Workload(
    name="ranks",
    sizes={"tiny": Size(batch_size=4)},
    model=Network(build=build, loss=loss),
    synthetic_batch=synthetic_batch,
)
