from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from bench.data.tensors import IGNORED
from bench.dgca.config import DGCAConfig
from bench.dgca.job import require_agreement
from bench.dgca.model import DGCA
from bench.dgca.ranks import Ranks
from bench.dgca.rows import Order
from bench.dgca.state import start_training
from bench.dgca.trainer import (
    Objective,
    accumulate_gradients,
    apply_gradients,
    note,
    require_progress,
)
from bench.dgca.workload import SIZES
from bench.train_command import TrainingFailed
from tests.support.dgca_runs import make_data

CPU = torch.device("cpu")


class Disagreeing(Ranks):
    """Two processes of which the other one holds something else."""

    def gather(self, value: object) -> list[object]:
        return [value, f"not {value}"]


class Agreeing(Ranks):
    def gather(self, value: object) -> list[object]:
        return [value, value]


def test_processes_that_drift_apart_are_noticed() -> None:
    require_agreement(Agreeing(world=2), nn.Linear(1, 1))
    with pytest.raises(TrainingFailed, match="different parameters"):
        require_agreement(Disagreeing(world=2), nn.Linear(1, 1))


def pick_rows_with_equal_counts(tensors: Mapping[str, Tensor], count: int) -> dict[str, Tensor]:
    """Every term of the loss is a mean over its own places: as many in each of these rows."""
    labels = tensors["labels"]
    ranked = (tensors["candidate_ids"] == labels.unsqueeze(-1)).any(-1).sum(1)
    facts = torch.stack([(labels != IGNORED).sum(1), ranked], dim=1)
    _, kind_of_row, sizes = torch.unique(facts, dim=0, return_inverse=True, return_counts=True)
    rows = (kind_of_row == sizes.argmax()).nonzero().squeeze(1)[:count]
    assert len(rows) == count
    return {name: tensor[rows] for name, tensor in tensors.items()}


def test_accumulated_gradients_are_those_of_the_large_batch(tmp_path: Path) -> None:
    data = make_data(tmp_path)
    tensors = pick_rows_with_equal_counts(torch.load(data.file("train"), weights_only=True), 8)
    torch.manual_seed(3)
    model = DGCA(DGCAConfig.from_size(SIZES["tiny"])).eval()  # dropout would draw differently
    objective = Objective(model, model.config)
    off = torch.amp.GradScaler("cpu", enabled=False)

    def collect(parts: int) -> tuple[Tensor, list[Tensor]]:
        objective.zero_grad()
        chunks = {name: tensor.chunk(parts) for name, tensor in tensors.items()}
        batches = [{name: chunks[name][part] for name in chunks} for part in range(parts)]
        loss = accumulate_gradients(objective, batches, off, half=False)
        return loss, [each.grad.clone() for each in model.parameters() if each.grad is not None]

    (large_loss, large), (small_loss, small) = collect(1), collect(4)
    assert len(large) == len(list(model.parameters()))
    assert max(float(each.abs().max()) for each in large) > 1e-3
    torch.testing.assert_close(small_loss, large_loss, rtol=0, atol=2e-5)
    for one, other in zip(small, large, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-6)


def test_every_epoch_visits_every_row_once_and_no_row_is_shared() -> None:
    plans = [
        Order(rows=25, micro_batch=2, accumulation=2, seed=1, rank=rank, world=2, end_step=6)
        for rank in (0, 1)
    ]
    assert plans[0].steps_per_epoch == 3
    first = [row for plan in plans for batch in list(plan)[:6] for row in batch]
    assert len(set(first)) == len(first) == 24
    second = [row for plan in plans for batch in list(plan)[6:] for row in batch]
    assert len(set(second)) == 24
    assert second != first


def test_an_order_can_be_entered_anywhere() -> None:
    whole_order = list(Order(rows=25, micro_batch=2, accumulation=3, seed=1, end_step=20))
    for step in (1, 4, 5, 19):
        rest = Order(rows=25, micro_batch=2, accumulation=3, seed=1, first_step=step, end_step=20)
        assert list(rest) == whole_order[step * 3 :]


def test_a_step_that_is_not_finite_is_skipped_and_counted() -> None:
    state = start_training(nn.Linear(2, 1), 0.1, half=False, fused=False, device=CPU)
    before = [each.clone() for each in state.model.parameters()]
    for each in state.model.parameters():
        each.grad = torch.full_like(each, torch.nan)
    state.step = 1
    note(state, [float("inf")], [float(apply_gradients(state, 0.1))])
    assert (state.skipped_steps, state.nonfinite_losses) == (1, 1)
    for one, other in zip(state.model.parameters(), before, strict=True):
        assert torch.equal(one, other)
    with pytest.raises(TrainingFailed, match="all 1 steps were not finite"):
        require_progress(state)
    state.step = 2
    require_progress(state)
