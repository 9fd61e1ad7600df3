"""A small job whose optimisations go wrong in every way, between two that do not."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor, nn

from diagnose.workload import Lab, Network, Optimization, Side, Size, Treatment, Trial, Workload

WIDTH = 8
weight = torch.zeros(WIDTH)


def fine() -> None:
    torch.ones(WIDTH).sum()


def fail() -> None:
    raise KeyError("no such column")


def drift() -> None:
    weight.add_(1.0)


def exhaust_memory() -> None:
    """A real refusal of the operating system, at what the process has now and a little more."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + 64 * 2**20
    resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
    torch.empty(2**28)


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


def build(size: Size) -> nn.Module:
    return nn.Linear(WIDTH, WIDTH)


def loss(model: nn.Module, batch: Tensor) -> Tensor:
    result: Tensor = model(batch).square().mean()
    return result


def synthetic_batch(size: Size, device: torch.device) -> Tensor:
    return torch.ones(size.batch_size, WIDTH, device=device)


WORKLOAD = Workload(
    name="treated",
    sizes={"small": Size(2)},
    model=Network(build=build, loss=loss),
    synthetic_batch=synthetic_batch,
    treatment=lambda: TREATMENT,
)
