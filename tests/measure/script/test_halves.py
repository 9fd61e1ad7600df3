"""Is a batch too small? Told by a copy of the model, which leaves the script as it is."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import nn

from diagnose.measure.machine.device import Device
from diagnose.measure.script.change.halves import HALF, WHOLE, Halves
from diagnose.measure.script.patches import Patches
from diagnose.measure.script.watch.boundary import Forwards
from diagnose.measure.script.watch.seen import Picture
from diagnose.measure.script.watch.where import Sources
from diagnose.records.script import Window
from diagnose.records.stats import FEWEST_FOR_INTERVAL

PICTURE = cast(
    Picture,
    SimpleNamespace(
        instruments=SimpleNamespace(device=Device("cpu")),
        phases={"optimizer": 0.001, "host": 0.002},
        spine=(),
        site=lambda spot: None,
    ),
)


class Counted(nn.Sequential):
    calls = 0

    def forward(self, rows: Any) -> Any:
        Counted.calls += 1
        return super().forward(rows)  # type: ignore[no-untyped-call]


def ask(model: nn.Module, call: Callable[[], object]) -> tuple[Any, list[Window]] | None:
    forwards = Forwards()
    halves = Halves(forwards, Sources(Path.cwd()))
    with Patches() as patches:
        forwards.install(patches)
        halves.record(patches)
        call()
    return halves.time(PICTURE, 7)


def seconds(windows: list[Window], variant: str) -> float:
    return statistics.median(each.seconds for each in windows if each.variant == variant)


def test_a_copy_is_timed_and_the_model_stays_as_it_was() -> None:
    model = Counted(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Dropout(0.5)).train()
    hooked: list[int] = []
    model.register_forward_hook(lambda *_: hooked.append(1))
    rows = torch.rand(4, 8)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    state = torch.get_rng_state()
    with torch.no_grad():
        assert ask(model, lambda: model(rows)) is None, "it does not learn"
    assert hooked == [1]
    model.load_state_dict(before)
    torch.set_rng_state(state)
    model(rows)
    expected = {name: value.clone() for name, value in model.state_dict().items()}
    drawn = torch.get_rng_state()
    model.load_state_dict(before)
    torch.set_rng_state(state)
    made = ask(model, lambda: model(rows))
    assert made is not None
    change, windows = made
    assert (change.cause, change.variant, change.against, change.samples) == (
        "batch", HALF, WHOLE, 0.5,
    )  # fmt: skip
    assert len(windows) == 2 * FEWEST_FOR_INTERVAL
    assert min(each.block for each in windows) == 7
    assert hooked == [1, 1, 1], "the copy has no hooks"
    assert torch.equal(torch.get_rng_state(), drawn)
    for name, value in model.state_dict().items():
        assert torch.equal(value, expected[name]), name
    assert all(each.grad is None for each in model.parameters())


@pytest.mark.alone
def test_half_of_a_large_batch_takes_less_and_half_of_a_tiny_one_does_not() -> None:
    shares = []
    for count in (2, 16384):
        model = nn.Sequential(*(nn.Linear(128, 128) for _ in range(8)))
        rows = torch.rand(count, 128)
        made = ask(model, lambda model=model, rows=rows: model(rows))  # type: ignore[misc]
        assert made is not None
        fixed = 0.001 + 0.002
        whole, half = (seconds(made[1], each) for each in (WHOLE, HALF))
        shares.append((half - 0.001 - 0.001) / (whole - fixed))
    assert shares[0] > 0.75 > shares[1]


def test_a_model_that_cannot_be_given_half_says_nothing() -> None:
    class Fixed(nn.Linear):
        def forward(self, rows: Any) -> Any:
            return super().forward(rows.view(4, 8))

    model = Fixed(8, 8)
    assert ask(model, lambda: model(torch.rand(4, 8))) is None
