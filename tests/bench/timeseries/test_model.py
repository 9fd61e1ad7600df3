"""Do the forms of the recurrent model compute the same, and are its metrics right?"""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from bench.timeseries.epoch import CURVE_POINTS, gradients, loss_curve
from bench.timeseries.job import describe_attention, measure
from bench.timeseries.model import AttentionRegressor
from bench.timeseries.settings import Settings
from bench.timeseries.training import find_amp_obstacle, use_tf32
from diagnose.workload import WorkloadError

CPU = torch.device("cpu")
SMALL = Settings(batch_size=64, sequence=14, hidden=16)


def assert_close(first: dict[str, Tensor], second: dict[str, Tensor]) -> None:
    assert first.keys() == second.keys()
    for name in first:
        torch.testing.assert_close(first[name], second[name], rtol=1e-4, atol=1e-6)


def differ(first: dict[str, Tensor], second: dict[str, Tensor]) -> bool:
    return any(not torch.allclose(first[name], second[name], rtol=1e-2) for name in first)


@pytest.mark.parametrize("layers", [1, 2, 3])
def test_the_loop_over_cells_is_the_fused_lstm(layers: int) -> None:
    torch.manual_seed(0)
    days = torch.randn(5, 9, 7)
    fused = AttentionRegressor(7, 12, layers, dropout=0.0, fused=True)
    loop = AttentionRegressor(7, 12, layers, dropout=0.0, fused=False)
    loop.load_state_dict(fused.state_dict())
    outputs = []
    for model in (fused, loop):
        predictions, weights = model.attend(days)
        predictions.square().sum().backward()  # type: ignore[no-untyped-call]
        outputs.append({"predictions": predictions.detach(), "weights": weights.detach()})
    assert_close(*outputs)
    torch.testing.assert_close(weights.sum(dim=1), torch.ones(5))
    assert_close(
        *({n: p.grad for n, p in m.named_parameters() if p.grad is not None} for m in (fused, loop))
    )
    assert all(each.grad is not None for each in loop.parameters())


def test_the_loop_drops_between_layers_in_training_only() -> None:
    torch.manual_seed(0)
    model = AttentionRegressor(7, 12, 2, dropout=0.5, fused=False)
    days = torch.randn(5, 9, 7)
    assert not torch.equal(model(days), model(days))
    model.eval()
    assert torch.equal(model(days), model(days))


@pytest.mark.parametrize(
    ("part", "whole"),
    # Of the 978 training windows the last group of four is 300 + 300 + 300 + 78.
    [(64, 256), (300, 978)],
)
def test_four_small_batches_have_the_gradients_of_the_big_one(part: int, whole: int) -> None:
    """And not those of one of their own, which a wrong proof would also call equal."""
    accumulated = gradients(replace(SMALL, batch_size=part, accumulate=4), CPU, seed=1)
    assert_close(accumulated, gradients(replace(SMALL, batch_size=whole), CPU, seed=1))
    assert differ(accumulated, gradients(replace(SMALL, batch_size=part), CPU, seed=1))


def test_curves_cover_the_same_windows_whatever_the_batch() -> None:
    samples = 320
    # So small a rate that nothing is learnt: the losses are those of the windows themselves.
    frozen = replace(SMALL, dropout=0.0, learning_rate=1e-12)
    curves = [
        loss_curve(replace(frozen, batch_size=batch), CPU, 1, samples) for batch in (32, 50, 320)
    ]
    assert [len(curve) for curve in curves] == [CURVE_POINTS] * 3
    for curve in curves[1:]:
        assert curve == pytest.approx(curves[0], rel=1e-4)
    learning = loss_curve(SMALL, CPU, 1, 3000)  # three epochs
    assert learning[-1] < 0.5 * learning[0]


def test_a_processor_without_a_bfloat16_lstm_is_told_so() -> None:
    obstacle = find_amp_obstacle(CPU, fused_lstm=True)
    fused = replace(SMALL, amp=True)
    if obstacle:
        with pytest.raises(WorkloadError, match="mixed precision cannot be used: oneDNN has no"):
            gradients(fused, CPU, seed=1)
    else:
        assert all(each.isfinite().all() for each in gradients(fused, CPU, seed=1).values())
    assert find_amp_obstacle(CPU, fused_lstm=False) == ""


def test_tf32_is_as_asked_while_open_and_as_before_afterwards() -> None:
    backends = torch.backends.cuda.matmul, torch.backends.cudnn
    before = [each.allow_tf32 for each in backends]
    for wanted in (False, True):
        with use_tf32(wanted):
            assert [each.allow_tf32 for each in backends] == [wanted, wanted]
    assert [each.allow_tf32 for each in backends] == before


def test_metrics_against_numbers_worked_out_by_hand() -> None:
    # Errors 1, -1, 0, 2 around targets of mean 5 and squared spread 9 + 1 + 1 + 9 = 20.
    found = measure(torch.tensor([2.0, 4.0, 6.0, 8.0]), torch.tensor([3.0, 3.0, 6.0, 10.0]))
    assert found.r2 == pytest.approx(1 - 6 / 20)
    assert found.rmse == pytest.approx(math.sqrt(6 / 4))
    assert found.mae == pytest.approx(1.0)
    assert found.mape == pytest.approx((1 / 2 + 1 / 4 + 0 + 2 / 8) / 4)
    assert (found.days, found.undefined) == (4, {})
    assert str(found) == "R² 0.700  RMSE 1.22  MAE 1  MAPE 25.0%  over 4 days"


def test_metrics_that_do_not_exist_say_why() -> None:
    constant = measure(torch.full((3,), 7.3), torch.tensor([7.0, 7.3, 8.3]))
    assert constant.r2 is None
    assert constant.undefined == {"r2": "the target is 7.3 on every day"}
    assert str(constant).startswith("R² – (the target is 7.3 on every day)  RMSE")
    zero = measure(torch.tensor([0.0, 1.0, -1.0]), torch.zeros(3))
    assert zero.mape is None
    assert zero.r2 == pytest.approx(0.0)
    assert zero.undefined == {"mape": "the target is 0 on 1 day"}


def test_the_days_with_most_attention_are_named_from_the_last_one() -> None:
    told = describe_attention(torch.tensor([0.05, 0.15, 0.3, 0.5]))
    assert told == "the last day 50%, 1 day before it 30%, 2 days before it 15%"
