"""A small job whose memory is known: its activations take PER_SAMPLE bytes per sample.

FAULT names what its step does from batch FROM on. It has max_crops, which multiplies the inputs.
"""

from __future__ import annotations

import os
import resource
import signal
import time
from pathlib import Path

import torch
from torch import Tensor, nn

from diagnose.workload import Network, Size, Workload

FAULT = os.environ.get("FAULT", "")
FROM = int(os.environ.get("FROM", "1"))
WIDTH = 8
PER_SAMPLE = int(os.environ.get("PER_SAMPLE", 2**20))


class Widening(torch.autograd.Function):
    """Keeps PER_SAMPLE bytes per sample from the forward to the backward pass."""

    @staticmethod
    def forward(context: torch.autograd.function.FunctionCtx, values: Tensor) -> Tensor:
        kept = torch.ones(len(values), PER_SAMPLE // 4, device=values.device)
        context.save_for_backward(kept)
        return values * kept[:, :1]

    @staticmethod
    def backward(context: torch.autograd.function.FunctionCtx, gradient: Tensor) -> Tensor:
        (kept,) = context.saved_tensors  # type: ignore[attr-defined]
        result: Tensor = gradient * kept[:, :1]
        return result


def limit_memory() -> None:
    room = int(os.environ.get("ROOM_BYTES", "0"))
    if room:
        limit_memory_to(room)


def limit_memory_to(room: int) -> None:
    """What the process has now and so much more, as a container or `ulimit -v` would say."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + room
    resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))


def build(size: Size) -> nn.Module:
    limit_memory()
    return nn.Linear(WIDTH, WIDTH)


def loss(model: nn.Module, batch: Tensor) -> Tensor:
    if len(batch) >= FROM:
        if FAULT == "sleep":
            time.sleep(3600)
        elif FAULT == "orphan":
            os.kill(os.getppid(), signal.SIGKILL)
            time.sleep(3600)  # it dies with its parent
        elif FAULT == "raise":
            raise KeyError("no such column")
    hidden: Tensor = Widening.apply(model(batch))  # type: ignore[no-untyped-call]
    return hidden.square().mean()


def synthetic_batch(size: Size, device: torch.device) -> Tensor:
    rows = size.batch_size * size.shape["max_crops"]
    return torch.ones(rows, WIDTH, device=device)


WORKLOAD = Workload(
    name="sized",
    sizes={"only": Size(batch_size=4, shape={"max_crops": 1})},
    model=Network(build=build, loss=loss),
    synthetic_batch=synthetic_batch,
)
