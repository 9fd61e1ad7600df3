"""Is a replica of DDP the same step, and does it hold its buckets besides?"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch import nn

from diagnose.measure.batch_size import data_parallel
from diagnose.measure.batch_size.data_parallel import loss_under_ddp
from diagnose.measure.batch_size.probe import open_step
from diagnose.measure.clock import SMOKE
from diagnose.measure.machine.allocations import count_allocations
from diagnose.measure.machine.device import open_device
from diagnose.measure.stages.plan import Context
from diagnose.workload import Network, Size, Workload

SIDE = 512


class Model(nn.Module):
    """One layer that the loss never reaches, as many models have."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.unused = nn.Linear(SIDE, SIDE), nn.Linear(8, 8)

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.used(batch)
        self.dtype = found.dtype
        return found.square().mean()


def open_context() -> Context:
    workload = Workload(
        name="w",
        sizes={"only": Size(batch_size=2, sequence_length=1)},
        model=Network(build=lambda size: Model(), loss=lambda model, batch: model(batch)),
        synthetic_batch=lambda size, device: torch.ones(size.batch_size, SIDE),
    )
    return Context(open_device("cpu"), workload, "only", workload.sizes["only"], SMOKE, seed=0)


@pytest.fixture(autouse=True)
def group() -> Iterator[None]:
    yield
    data_parallel._wrapped.clear()
    if dist.is_initialized():
        dist.destroy_process_group()


def test_it_is_the_same_step() -> None:
    weights = []
    for ddp in (False, True):
        context = open_context()
        step = open_step(context, mixed=False, ddp=ddp)
        step.prepare()
        for _ in range(3):
            step.run()
        model = context.model(context.workload.model)
        weights.append([each.detach().clone() for each in model.parameters()])
    assert all(map(torch.equal, *weights))
    assert len(data_parallel._wrapped) == 1, "wrapped once, however many steps there are"


def test_it_is_mixed_where_the_step_is() -> None:
    context = open_context()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss_under_ddp(context, torch.ones(2, SIDE))
    model = context.model(context.workload.model)
    assert isinstance(model, Model)
    assert model.dtype is torch.bfloat16


def test_its_buckets_are_held_besides() -> None:
    context = open_context()
    device, batch = context.device, torch.ones(2, SIDE)
    model = context.model(context.workload.model)
    gradients = 4 * (SIDE + 1) * SIDE
    context.workload.model.loss(model, batch)

    def backward(loss: torch.Tensor) -> None:
        torch.autograd.backward(loss)
        model.zero_grad()

    alone = count_allocations(lambda: backward(context.workload.model.loss(model, batch)), device)
    under = count_allocations(lambda: backward(loss_under_ddp(context, batch)), device)
    assert under.peak_bytes - alone.peak_bytes >= 0.9 * gradients
