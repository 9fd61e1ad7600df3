"""What do the jobs of the tests share? One small layer, its loss, and limits of memory."""

from __future__ import annotations

import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from diagnose.workload import Network, Size, Workload

WIDTH = 8


def square(model: nn.Module, batch: Tensor) -> Tensor:
    result: Tensor = model(batch).square().mean()
    return result


def small_job(
    name: str,
    size: Size,
    *,
    width: int = WIDTH,
    build: Callable[[Size], nn.Module] | None = None,
    loss: Callable[[nn.Module, Any], Tensor] = square,
    **parts: Any,
) -> Workload:
    """A job with one size, whose model is one layer; `parts` are further fields of Workload."""

    def build_layer(size: Size) -> nn.Module:
        return nn.Linear(width, width)

    def synthetic_batch(size: Size, device: torch.device) -> Tensor:
        rows = size.batch_size * size.shape.get("max_crops", 1)
        generator = torch.Generator().manual_seed(0)
        return torch.randn(rows, width, generator=generator).to(device)

    return Workload(
        name=name,
        sizes={"only": size},
        model=Network(build=build or build_layer, loss=loss),
        synthetic_batch=synthetic_batch,
        **parts,
    )


def limit_memory(room: int) -> None:
    """What the process has now and so many bytes more, as a container or `ulimit -v` would say."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + room
    resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))


def exhaust_memory() -> None:
    """A real refusal of the operating system."""
    limit_memory(64 * 2**20)
    torch.empty(2**28)
