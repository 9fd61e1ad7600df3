"""A small job whose optimisations go wrong in every way, between two that do not."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from diagnose.workload import Lab, Optimization, Side, Size, Treatment, Trial
from tests.support.jobs.small import WIDTH, exhaust_memory, small_job

weight = torch.zeros(WIDTH)


def fine() -> None:
    torch.ones(WIDTH).sum()


def fail() -> None:
    raise KeyError("no such column")


def drift() -> None:
    weight.add_(1.0)


def vanish() -> None:
    os._exit(9)


def side(text: str, **steps: Callable[[], None]) -> Side:
    def opener(step: Callable[[], None]) -> Callable[[Lab], object]:
        @contextmanager
        def trial(lab: Lab) -> Iterator[Trial]:
            yield Trial(step, 1, lambda: [weight])

        return trial

    trials = {name: opener(step) for name, step in steps.items()}
    return Side(text, lambda lab: {"weight": weight.clone()}, trials)  # type: ignore[arg-type]


def change(key: str, **steps: Callable[[], None]) -> Optimization:
    before = side("as it was", **dict.fromkeys(steps, fine))
    return Optimization(key, key, before, side("changed", **steps))


TREATMENT = Treatment(
    (
        change("first", forward=fine),
        change("raises", forward=fine, backward=fail),
        change("drifts", forward=drift),
        change("starves", forward=exhaust_memory),
        change("vanishes", forward=vanish),
        change("last", forward=fine),
    )
)


def loss(model: nn.Module, batch: Tensor) -> Tensor:
    """Its own: its launches are mapped to this file."""
    result: Tensor = model(batch).square().mean()
    return result


WORKLOAD = small_job("treated", Size(2), loss=loss, treatment=lambda: TREATMENT)
