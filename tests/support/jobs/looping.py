"""A small job whose every launch can be counted by hand, one question per function.

Each `# name` marks the line that a test asks for.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

ROWS, WIDTH = 4, 3


def assign_rows(device: str) -> Tensor:
    source = torch.ones(WIDTH, device=device, requires_grad=True)
    target = source.expand(ROWS, WIDTH).clone()  # clone
    for row in range(ROWS):
        target[row] = source * 2  # loop
    loss = target.sum()  # sum
    loss.backward()  # type: ignore[no-untyped-call]  # backward
    return loss


def read_on_host(device: str) -> Tensor:
    values = torch.arange(1.0, 7.0, device=device)  # arange
    total = 0.0
    for index in range(3):
        total += values[index].item()  # item
    places = values.nonzero()  # nonzero
    chosen = values[values > 2]  # mask
    values[values > 5] = 0.0  # fill
    listed = values.tolist()  # tolist
    copied = values.cpu()  # cpu
    assert len(listed) == len(copied) == 6
    return places.sum() + chosen.sum() + total


def allocate(device: str) -> Tensor:
    big = torch.zeros(100, 1000, device=device)  # big
    small = torch.ones(10, 10, dtype=torch.int64, device=device)  # small
    rows = big.view(1000, 100).t()[:5]  # views
    return rows.sum() + small.sum()


class Folding(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(WIDTH, WIDTH)

    def forward(self, values: Tensor) -> Tensor:
        hidden: Tensor = self.inner(values)  # linear
        return hidden.relu()  # relu


def call_twice(device: str) -> Callable[[], Tensor]:
    module = Folding().to(device)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1, foreach=False)

    def step() -> Tensor:
        values = torch.ones(ROWS, WIDTH, device=device)
        loss: Tensor = module(module(values)).sum()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()  # update
        optimizer.zero_grad()
        return loss

    return step


def change_in_place(device: str) -> Tensor:
    weight = torch.ones(WIDTH, device=device, requires_grad=True)
    values = weight * 3  # multiply
    values.mul_(2).add_(1)  # in place
    with torch.no_grad():
        frozen = weight * 5  # frozen
    # Two additions of one statement: the line still runs once.
    result = (values + frozen + frozen).sum()  # twice
    result.backward()  # type: ignore[no-untyped-call]
    return result


def multiply(device: str) -> Tensor:
    left = torch.ones(4, 5, device=device, requires_grad=True)
    right = torch.ones(5, 6, device=device, requires_grad=True)
    product = left @ right  # matmul
    total = product.sum()
    total.backward()  # type: ignore[no-untyped-call]
    return total


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(context: object, values: Tensor) -> Tensor:
        return values * 2  # own forward

    @staticmethod
    def backward(context: object, gradient: Tensor) -> Tensor:
        return gradient * 2  # own backward


def run_in_backward(device: str) -> Tensor:
    weight = torch.ones(WIDTH, device=device, requires_grad=True)
    doubled: Tensor = Doubled.apply(weight)  # type: ignore[no-untyped-call]
    again: Tensor = checkpoint(exponential, doubled, use_reentrant=False)
    loss = again.sum()
    loss.backward()  # type: ignore[no-untyped-call]
    return loss


def exponential(values: Tensor) -> Tensor:
    return values.exp()  # recomputed


def fail(device: str) -> Tensor:
    raise KeyError("no such column")
