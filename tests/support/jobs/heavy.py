"""A job whose gradients weigh much more than its arithmetic: the link decides its speed."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from diagnose.workload import Network, Size, Workload

WIDTH = 512  # one matrix of 1 MiB


def build(size: Size) -> nn.Module:
    return nn.Linear(WIDTH, WIDTH)


def loss(model: nn.Module, batch: Tensor) -> Tensor:
    result: Tensor = model(batch).square().mean()
    return result


def synthetic_batch(size: Size, device: torch.device) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(size.batch_size, WIDTH, generator=generator).to(device)


WORKLOAD = Workload(
    name="heavy",
    sizes={"tiny": Size(batch_size=2)},
    model=Network(build=build, loss=loss),
    synthetic_batch=synthetic_batch,
)
