"""In which precision is computed, and can this device do it?"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn


def autocast(device: torch.device, enabled: bool) -> torch.autocast:
    """float16 on CUDA, where the gradients are scaled for it; bfloat16 elsewhere."""
    dtype = torch.float16 if device.type == "cuda" else torch.bfloat16
    return torch.autocast(device.type, dtype=dtype, enabled=enabled)


def find_amp_obstacle(device: torch.device, *, fused_lstm: bool) -> str:
    """Why mixed precision does not work here, or "". Tried, not guessed from the model name."""
    if device.type != "cpu" or not fused_lstm:
        return ""
    try:
        with torch.no_grad(), autocast(device, True):
            nn.LSTM(1, 1)(torch.zeros(1, 1, 1))
    except RuntimeError:
        # Without AVX-512 oneDNN can only raise; PyTorch does not fall back to its own LSTM.
        return "oneDNN has no bfloat16 LSTM for this processor (it needs AVX-512)"
    return ""


@contextmanager
def use_tf32(enabled: bool) -> Iterator[None]:
    """Whether float32 products may be rounded to TF32: in matrices and in cuDNN's recurrence."""
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32
    matmul.allow_tf32 = cudnn.allow_tf32 = enabled
    try:
        yield
    finally:
        matmul.allow_tf32, cudnn.allow_tf32 = before
