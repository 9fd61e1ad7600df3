"""Half precision, the compiler and counted memory: each measure can come out both ways."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from bench.dgca.workload import SIZES
from bench.optimizations import whole_step
from bench.optimizations.dgca_model import GATED_FUSION
from bench.optimizations.lab import watch_compiling
from bench.optimizations.whole_step import (
    ALL_TOGETHER_FP16,
    MIXED_PRECISION,
    TrainingStep,
    emulation_obstacle,
    time_precisions,
)
from diagnose.measure.machine.allocations import add_up, count_allocations
from diagnose.measure.machine.device import Device
from diagnose.workload import Lab

CPU = torch.device("cpu")
LAB = Lab(CPU, replace(SIZES["tiny"], batch_size=8), 0)
MEGABYTE = 2**20


def test_what_is_held_at_once_is_the_peak() -> None:
    def work() -> None:
        first = torch.empty(MEGABYTE, dtype=torch.uint8)
        second = torch.empty(2 * MEGABYTE, dtype=torch.uint8)
        del first, second
        torch.empty(MEGABYTE, dtype=torch.uint8)

    counted = count_allocations(work, Device("cpu"))
    assert (counted.peak_bytes, counted.allocated_bytes) == (3 * MEGABYTE, 4 * MEGABYTE)
    assert add_up([5, -5, 4]).peak_bytes == 5
    assert add_up([]).count == 0


def test_the_fusion_in_place_holds_a_vocabulary_tensor_less() -> None:
    assert GATED_FUSION.facts is not None
    facts = GATED_FUSION.facts(LAB)
    before, after = facts["before_peak_bytes"], facts["after_peak_bytes"]
    tensor = facts["vocabulary_tensor_bytes"]
    assert isinstance(before, int)
    assert isinstance(after, int)
    assert isinstance(tensor, int)
    assert before > after > 0
    assert (before - after) / tensor == pytest.approx(1, abs=0.01)


@pytest.mark.parametrize("low", [False, True])
def test_the_share_left_in_float32_is_all_or_nothing_where_it_is(low: bool) -> None:
    weights = torch.randn(64, 64, dtype=torch.bfloat16 if low else torch.float32)
    found = time_precisions(lambda: weights @ weights, CPU)
    assert found["fp32_time_share"] == (0.0 if low else 1.0)
    assert ("mm" in str(found["fp32_operators"])) is not low
    assert found["cast_time_share"] == 0.0


def test_a_cast_is_no_work_left_in_float32() -> None:
    weights = torch.randn(64, 64)
    found = time_precisions(lambda: weights.bfloat16(), CPU)
    assert found["fp32_time_share"] == 0.0
    assert found["cast_time_share"] == 1.0


@pytest.mark.long
def test_float16_scales_its_losses_and_trains_at_the_size_of_the_lab() -> None:
    step = TrainingStep(LAB, torch.float16)
    losses = [float(step()) for _ in range(3)]
    assert all(torch.tensor(losses).isfinite())
    assert step.scale > 1
    assert TrainingStep(LAB).scale == 1
    with MIXED_PRECISION.after.trials["training step"](LAB) as trial:
        assert trial.samples_per_step == LAB.size.batch_size
    assert MIXED_PRECISION.facts is not None
    facts = MIXED_PRECISION.facts(LAB)
    share = facts["fp32_time_share"]
    assert isinstance(share, float)
    assert 0 < share < 1, "the vocabulary's softmax is computed in float32, the products are not"


@pytest.mark.long
def test_both_forms_of_the_whole_step_learn_alike_in_float16() -> None:
    before, after = (
        side.outcome(LAB)["losses"] for side in (ALL_TOGETHER_FP16.before, ALL_TOGETHER_FP16.after)
    )
    assert before.isfinite().all()
    assert torch.allclose(before, after, rtol=0.02)
    assert not torch.equal(before, after), "they round differently"


class Broken(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        if float(x.sum()) > 0:  # the compiler cannot see what is in a tensor
            return x * 2
        return x


@pytest.mark.parametrize(("module", "breaks"), [(nn.Linear(4, 4), 0), (Broken(), 1)])
def test_graph_breaks_and_the_time_to_compile_are_counted(module: nn.Module, breaks: int) -> None:
    compiled = torch.compile(module, backend="eager")
    facts = watch_compiling(lambda: compiled(torch.ones(2, 4)), "test")
    assert facts["took_effect"] is True
    assert facts["graph_breaks"] == breaks
    assert isinstance(facts["compile_seconds"], float)


def test_a_format_that_is_emulated_is_left_out_with_its_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for slowdown, words in ((7.0, ""), (45.0, "emulates float16: a step takes 45 times")):
        seconds = {None: 1.0, torch.float16: slowdown}
        monkeypatch.setattr(whole_step, "step_seconds", lambda lab, low, s=seconds: s[low])
        found = emulation_obstacle(LAB, torch.float16)
        assert (words in found) if words else not found
    assert not emulation_obstacle(replace(LAB, device=torch.device("cuda")), torch.float16)
