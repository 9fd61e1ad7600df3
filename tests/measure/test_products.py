"""Do products grow until they tell the speed of the device, and is their precision known?"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch

from diagnose.measure.machine.device import Device
from diagnose.measure.machine.products import (
    FIRST_SIDE,
    LARGEST_SIDE,
    float32_products,
    float32_setting,
    grow,
    precision_of,
    time_products,
)
from diagnose.measure.script.watch.ceilings import measure_ceilings


@pytest.fixture(autouse=True)
def as_it_was() -> Iterator[None]:
    yield
    torch.set_float32_matmul_precision("highest")
    torch.backends.cuda.matmul.fp32_precision = "none"
    torch.set_float32_matmul_precision("highest")


def timed(flops_per_second: float, launch: float) -> Callable[[int], dict[str, float]]:
    """A device that needs so long for a launch, whatever is launched."""
    return lambda side: {"NN": max(launch, 2.0 * side**3 / flops_per_second)}


@pytest.mark.parametrize(
    ("flops_per_second", "launch"), [(6e13, 10e-6), (1e15, 10e-6), (1e11, 1e-6), (1e9, 1e-6)]
)
def test_the_side_grows_until_the_product_is_no_longer_a_launch(
    flops_per_second: float, launch: float
) -> None:
    found = grow(timed(flops_per_second, launch))
    assert found.flops_per_second == pytest.approx(flops_per_second)
    assert found.side == LARGEST_SIDE or min(found.seconds.values()) >= 1e-3
    assert (found.side == FIRST_SIDE) == (flops_per_second == 1e9)


def test_without_memory_for_more_the_last_side_counts() -> None:
    def time_side(side: int) -> dict[str, float]:
        if side > 1024:
            raise torch.OutOfMemoryError("full")
        return timed(1e15, 1e-5)(side)

    assert grow(time_side).side == 1024


def test_products_of_this_processor() -> None:
    full = time_products(Device("cpu"), torch.float32)
    assert set(full.seconds) == {"NT", "NN", "TN"}
    assert full.flops_per_second == 2.0 * full.side**3 / full.seconds[full.fastest]


def test_precision_is_the_type_or_what_the_script_allows() -> None:
    cpu, cuda = Device("cpu"), Device("cpu")
    cuda.kind = "cuda"
    assert precision_of(cpu, "mm", torch.bfloat16) == "bfloat16"
    assert precision_of(cpu, "mm", torch.float32) == "float32"
    torch.set_float32_matmul_precision("high")
    assert precision_of(cpu, "mm", torch.float32) == "tf32"
    assert precision_of(cpu, "mm", torch.float64) == "float64"
    torch.set_float32_matmul_precision("highest")
    # cuDNN may use fewer bits by default, products may not.
    assert precision_of(cuda, "convolution", torch.float32) == "tf32"
    assert precision_of(cuda, "addmm", torch.float32) == "float32"


def test_the_newer_setting_of_a_script_is_read_and_left_alone() -> None:
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    with pytest.raises(RuntimeError, match="precision"):
        torch.get_float32_matmul_precision()
    assert float32_setting() == "high"
    with float32_products("highest"):
        assert torch.backends.cuda.matmul.fp32_precision == "ieee"
    assert torch.backends.cuda.matmul.fp32_precision == "tf32"


def test_ceilings_leave_settings_and_random_numbers_as_they_were() -> None:
    torch.set_float32_matmul_precision("high")
    state = torch.random.get_rng_state()
    ceilings = measure_ceilings(Device("cpu"))
    assert torch.get_float32_matmul_precision() == "high"
    assert torch.equal(torch.random.get_rng_state(), state)
    for precision in ("float32", "float64", "bfloat16", "tf32"):
        assert ceilings.of(precision) > 0
    assert ceilings.of("int8") == 0
    assert ceilings.low_precision == "bfloat16"
