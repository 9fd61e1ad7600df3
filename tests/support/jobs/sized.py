"""A small job whose memory is known: its activations take PER_SAMPLE bytes per sample.

FAULT names what its step does from batch FROM on. It has max_crops, which multiplies the inputs.
"""

from __future__ import annotations

import os
import signal
import time

import torch
from torch import Tensor, nn

from diagnose.workload import Size
from tests.support.jobs.small import WIDTH, limit_memory, small_job

FAULT = os.environ.get("FAULT", "")
FROM = int(os.environ.get("FROM", "1"))
PER_SAMPLE = int(os.environ.get("PER_SAMPLE", 2**20))
# What its process may take beyond what it has, if that is to be limited.
ROOM_BYTES = int(os.environ.get("ROOM_BYTES", "0"))


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


def build(size: Size) -> nn.Module:
    if ROOM_BYTES:
        limit_memory(ROOM_BYTES)
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


WORKLOAD = small_job("sized", Size(batch_size=4, shape={"max_crops": 1}), build=build, loss=loss)
