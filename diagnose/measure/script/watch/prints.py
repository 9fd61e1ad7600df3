"""Is this the same tensor, or the same result? The one by its memory, the other by its print."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import torch
from torch._C._functorch import is_functorch_wrapped_tensor

_WIDEST = 8  # bytes of a number
# Values of a result that are compared bit by bit, beside its sum.
_COMPARED = 1024


# Longer lists hold numbers or rows, not the tensors of one batch.
MOST_PARTS = 16


class Result(NamedTuple):
    """What one operator made: equal contents made again have an equal print."""

    operator: str
    print: tuple[float, bytes]
    elements: int
    seconds: float

    @property
    def is_constant(self) -> bool:
        """Nothing but zeros, say, may come of other arguments in every step."""
        values = self.print[1].partition(b")")[2]
        return values[_WIDEST:] == values[:-_WIDEST]


def nbytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def fingerprint(tensor: torch.Tensor) -> tuple[float, bytes]:
    """Equal for equal contents: a sum over everything, and a regular choice of its values."""
    shape, size = str(tuple(tensor.shape)).encode(), tensor.numel()
    if tensor.layout is not torch.strided or size == 0 or tensor.is_meta:
        return 0.0, shape
    if size <= _COMPARED and tensor.is_cpu and tensor.is_contiguous():
        # Most results of a step are small, and operators to look at them would cost more.
        return 0.0, shape + ctypes.string_at(tensor.data_ptr(), nbytes(tensor))
    flat = tensor.detach().reshape(-1)
    chosen = flat[:: max(1, size // _COMPARED)].to("cpu", torch.float64)
    total = flat.sum(dtype=None if flat.is_complex() else torch.float64)
    return float(total.abs()), shape + chosen.numpy().tobytes()


def address_of(tensor: torch.Tensor) -> int:
    # Inside torch.func's transforms a tensor stands for many, and has no memory of its own.
    if tensor.layout is not torch.strided or is_functorch_wrapped_tensor(tensor):
        return id(tensor)
    return tensor.untyped_storage().data_ptr()


def array_addresses(value: object) -> Iterator[int]:
    """Tensors and arrays of any library, alone or in the small structure that a batch is."""
    parts: Iterable[object] = (value,)
    if isinstance(value, tuple | list | dict):
        if len(value) > MOST_PARTS:
            return
        parts = value.values() if isinstance(value, dict) else value
    for leaf in parts:
        if isinstance(leaf, torch.Tensor):
            if not is_functorch_wrapped_tensor(leaf):
                yield address_of(leaf)
        elif hasattr(leaf, "__array_interface__"):
            yield int(leaf.__array_interface__["data"][0])
