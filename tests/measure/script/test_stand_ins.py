"""Are functions replayed or left out under every name they have, and put back afterwards?"""

from __future__ import annotations

import copy
import inspect
import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch

from diagnose.measure.machine.device import Device, open_visible_device
from diagnose.measure.script.change.functions import (
    can_be_replayed,
    find_functions,
    put_stand_in,
)
from diagnose.measure.script.change.stand_ins import LeftOut, Occasions, Swap
from diagnose.measure.script.change.updates import time_updates
from diagnose.measure.script.patches import Patches
from diagnose.measure.script.watch.clock import StepClock
from diagnose.records.stats import FEWEST_FOR_INTERVAL


class Maker:
    calls = 0

    def make(self, size: int = 2, *, fill: float = 1.0) -> torch.Tensor:
        self.calls += 1
        return torch.full((size,), fill)


def make_closure(factor: int) -> Any:
    def scaled(value: int) -> int:
        return factor * value

    return scaled


def test_a_function_is_replayed_under_every_name_and_put_back() -> None:
    maker, triple = Maker(), make_closure(3)
    bound = maker.make  # a name that was taken before
    method, closure = Swap(Maker.make.__code__), Swap(triple.__code__)
    with Patches() as patches:
        method.record(patches)
        closure.record(patches)
        kept = bound(3, fill=2.0)
        assert triple(5) == 15
    assert method.is_ready
    with Patches() as patches:
        method.replay(patches)
        closure.replay(patches)
        assert bound(9) is kept
        assert Maker.make(maker) is kept
        assert triple(7) == 15
    assert maker.calls == 1
    assert (len(bound(9)), triple(7)) == (9, 21)


WEIGHT = torch.ones(2, requires_grad=True)


def graph() -> torch.Tensor:
    return WEIGHT * 2


def nothing() -> None:
    return None


def numbers() -> Any:
    yield 1


@pytest.mark.parametrize("function", [graph, nothing])
def test_what_cannot_be_replayed_is_refused(function: Any) -> None:
    swap = Swap(function.__code__)
    with Patches() as patches:
        swap.record(patches)
        function()
    assert not swap.is_ready
    assert swap.refused
    assert not can_be_replayed(numbers.__code__)


def test_one_of_every_two_is_left_out_and_gives_the_last_result() -> None:
    runs: list[int] = []

    def evaluate(number: int) -> str:
        runs.append(number)
        return f"result {number}"

    left_out = LeftOut(evaluate.__code__, "evaluation")
    results = []
    with Patches() as patches:
        left_out.install(patches)
        for step in range(40):
            if step % 2 == 0:
                results.append(evaluate(step))
            left_out.end_step(seconds=float(step))
    assert len(left_out.ran) == len(runs)
    assert len(left_out.ran) + len(left_out.left_out) == 20
    assert 9 <= len(left_out.left_out) <= 10  # the first one has to run
    assert all(seconds % 2 == 0 for seconds in left_out.ran + left_out.left_out)
    last = ""
    for step, result in zip(range(0, 40, 2), results, strict=True):
        last = f"result {step}" if step in runs else last
        assert result == last
    assert evaluate(40) == "result 40"


def test_on_a_device_that_works_behind_the_host_its_own_time_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def evaluate() -> int:
        return 1

    monkeypatch.setattr(StepClock, "read", lambda clock: tuple(100.0 + step for step in range(8)))
    occasions = Occasions(Device("cpu"))
    occasions._found = [LeftOut(evaluate.__code__, "evaluation")]
    with Patches() as patches:
        occasions.install(patches)
        for step in range(8):
            if step % 2:
                evaluate()
            occasions.end_step(seconds=0.5)  # the host's
    (found,) = occasions.record().values()
    assert sorted(found.ran + found.left_out) == [101.0, 103.0, 105.0, 107.0]


def test_what_belongs_to_a_graph_is_never_left_out() -> None:
    weight = torch.ones(3, requires_grad=True)

    def score() -> torch.Tensor:
        return weight.sum()

    left_out = LeftOut(score.__code__, "evaluation")
    with Patches() as patches:
        left_out.install(patches)
        for _ in range(6):
            score().backward()  # type: ignore[no-untyped-call]
            left_out.end_step(1.0)
    assert not left_out.left_out
    assert weight.grad is not None
    assert weight.grad.tolist() == [6.0, 6.0, 6.0]


def test_all_calls_of_a_step_are_treated_alike() -> None:
    lines: list[str] = []
    logger, handler = logging.Logger("lines"), logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logger.addHandler(handler)
    left_out = LeftOut(logging.Logger.handle.__code__, "logging")
    with Patches() as patches:
        left_out.install(patches)
        for step in range(20):
            logger.warning("%d", step)
            logger.warning("%d", step)
            left_out.end_step(1.0)
    assert len(lines) == 2 * len(left_out.ran) == 2 * len(set(lines))
    logger.warning("20")
    assert lines[-1] == "20"


def make_update(**options: Any) -> torch.optim.Optimizer:
    parameters = [torch.nn.Parameter(torch.ones(64)) for _ in range(8)]
    for each in parameters:
        each.grad = torch.ones(64)
    optimizer = torch.optim.AdamW(parameters, **options)
    optimizer.step()
    return optimizer


def test_another_form_of_the_update_is_timed_on_copies() -> None:
    adam = make_update(foreach=False)
    before = copy.deepcopy(adam.state_dict()), [e.clone() for e in adam.param_groups[0]["params"]]
    (timed,) = time_updates([adam], open_visible_device())
    assert len(timed.own) == len(timed.other) == FEWEST_FOR_INTERVAL
    (change,) = timed.changes(None)
    assert (change.cause, change.what) == ("optimizer", "fused=True in AdamW")
    assert {each.variant for each in timed.windows(7)} == {change.variant, change.against}
    assert min(each.block for each in timed.windows(7)) == 7
    after = adam.state_dict()
    torch.testing.assert_close(after["state"], before[0]["state"], rtol=0, atol=0)
    assert after["param_groups"] == before[0]["param_groups"]
    for one, other in zip(before[1], adam.param_groups[0]["params"], strict=True):
        assert torch.equal(one, other)


def test_an_update_that_has_no_other_form_is_not_timed() -> None:
    device = open_visible_device()
    parameter = torch.nn.Parameter(torch.ones(2))
    assert not list(time_updates([make_update(fused=True)], device))
    assert not list(time_updates([torch.optim.LBFGS([parameter])], device))

    class Own(torch.optim.AdamW):
        def __init__(self, model: torch.nn.Module) -> None:
            super().__init__(model.parameters())

    model = torch.nn.Linear(2, 2)
    model(torch.ones(2)).sum().backward()
    assert not list(time_updates([Own(model)], device))


def test_a_stand_in_has_the_parameters_of_the_function() -> None:
    """Lightning looks at them to see whether a hook wants the number of the batch."""
    offset = 1

    def hook(a: int, b: int = 2, /, c: int = 3, *rest: int, d: int, **more: int) -> object:
        return a + offset, b, c, rest, d, more

    parameters, expected = inspect.signature(hook), hook(1, 2, 3, 4, d=5, e=6)
    with Patches() as patches:
        calls: list[object] = []

        def stand_in(original: Callable[..., Any], args: Any, kwargs: Any) -> Any:
            calls.append(args)
            return original(*args, **kwargs)

        put_stand_in(patches, find_functions(hook.__code__), stand_in)
        assert inspect.signature(hook) == parameters
        assert hook(1, 2, 3, 4, d=5, e=6) == expected
        assert hook(1, d=5) == (2, 2, 3, (), 5, {})
        assert calls == [(1, 2, 3, 4), (1, 2, 3)]
        with pytest.raises(TypeError, match="missing 1 required keyword-only argument: 'd'"):
            hook(1)  # type: ignore[call-arg]
