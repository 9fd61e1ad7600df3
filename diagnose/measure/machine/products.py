"""How fast can this device multiply matrices? Square products, as large as it takes to tell.

A small product measures how long a launch takes, not how fast the device is. So the side grows
until one product takes a millisecond, and products are timed back to back.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch

from diagnose.measure.machine.device import Device
from diagnose.records.script import TENSOR_FLOAT

FIRST_SIDE = 256
# Three float32 matrices of it are 0.8 GB; no device known to us is launch-bound there.
LARGEST_SIDE = 8192
ENOUGH_SECONDS = 1e-3
ROUNDS = 5
MOST_BACK_TO_BACK = 16
ROUND_SECONDS = 4e-3

Seconds = Mapping[str, float]  # of one product, by layout


@dataclass(frozen=True)
class Products:
    """The largest square products that were timed in one precision."""

    side: int
    seconds: Seconds  # kernels differ tenfold between layouts

    @property
    def fastest(self) -> str:
        return min(self.seconds, key=lambda layout: self.seconds[layout])

    @property
    def flops_per_second(self) -> float:
        return 2.0 * self.side**3 / self.seconds[self.fastest]

    @property
    def seconds_per_flop(self) -> float:
        """Over the three products of a linear layer."""
        return math.fsum(self.seconds.values()) / (2.0 * self.side**3 * len(self.seconds))


def grow(time_side: Callable[[int], Seconds]) -> Products:
    """Double the side until one product takes long enough, or there is no memory for more."""
    found = Products(FIRST_SIDE, time_side(FIRST_SIDE))
    while min(found.seconds.values()) < ENOUGH_SECONDS and found.side < LARGEST_SIDE:
        try:
            found = Products(2 * found.side, time_side(2 * found.side))
        except RuntimeError:  # torch's out of memory is one
            break
    return found


def time_products(device: Device, dtype: torch.dtype) -> Products:
    """A RuntimeError on a device that has no products in this precision."""

    def time_side(side: int) -> Seconds:
        matrix = torch.ones(side, side, dtype=dtype, device=device.torch)
        out = torch.empty_like(matrix)
        return {
            layout: _time(device, lambda pair=pair: torch.mm(*pair, out=out))  # type: ignore[misc]
            for layout, pair in operands(matrix, matrix).items()
        }

    return grow(time_side)


def operands(
    left: torch.Tensor, right: torch.Tensor
) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """The three products of a linear layer: forward, gradient of its input, of its weight."""
    return {"NT": (left, right.t()), "NN": (left, right), "TN": (left.t(), right)}


def _time(device: Device, multiply: Callable[[], object]) -> float:
    def once(count: int) -> float:
        device.synchronize()
        began = device.now()
        for _ in range(count):
            multiply()
        device.synchronize()
        return max(device.now() - began, 1e-9) / count

    first = once(1)  # also chooses the kernel
    count = max(1, min(MOST_BACK_TO_BACK, round(ROUND_SECONDS / first)))
    # The fastest: a disturbed round must not pass for a slow device.
    return min(first, *(once(count) for _ in range(ROUNDS)))


def float32_setting() -> str:
    """How float32 products may be computed: "highest", or with fewer bits inside."""
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:  # the script uses the newer setting, which this one does not know
        allowed = torch.backends.cuda.matmul.fp32_precision
        return "high" if allowed == "tf32" else "highest"


def precision_of(device: Device, operator: str, dtype: torch.dtype) -> str:
    """What a product of such tensors is computed in: their type, or fewer bits where allowed."""
    if dtype is torch.float32:
        if device.kind == "cuda" and "convolution" in operator:
            fewer_bits = torch.backends.cudnn.allow_tf32
        else:
            fewer_bits = float32_setting() != "highest"
        if fewer_bits:
            return TENSOR_FLOAT
    return str(dtype).removeprefix("torch.")


def choose_float32_products(setting: str) -> None:
    """In the words that the workload uses: torch refuses one setting once the other was used."""
    try:
        torch.get_float32_matmul_precision()
    except RuntimeError:
        torch.backends.cuda.matmul.fp32_precision = "ieee" if setting == "highest" else "tf32"
    else:
        torch.set_float32_matmul_precision(setting)


@contextlib.contextmanager
def float32_products(setting: str) -> Iterator[None]:
    """Compute them in this way."""
    usual = float32_setting()
    choose_float32_products(setting)
    try:
        yield
    finally:
        choose_float32_products(usual)
