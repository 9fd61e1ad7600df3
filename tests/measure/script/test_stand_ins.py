"""Are functions replayed or left out under every name they have, and put back afterwards?"""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch

from diagnose.measure.script.change.candidates import other_optimizer
from diagnose.measure.script.change.stand_ins import LeftOut, Swap, can_be_replayed
from diagnose.measure.script.patches import Patches


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


def test_another_form_of_the_update_is_tried_only_where_there_is_one() -> None:
    parameter = torch.nn.Parameter(torch.ones(2))
    adam = torch.optim.AdamW([parameter])
    variant = other_optimizer(adam, None, 0)
    assert variant is not None
    before = dict(adam.param_groups[0])
    with Patches() as patches:
        variant.begin(patches)
        assert adam.param_groups[0]["fused"]
    assert adam.param_groups[0] == before
    assert other_optimizer(torch.optim.AdamW([parameter], fused=True), None, 0) is None
    assert other_optimizer(torch.optim.LBFGS([parameter]), None, 0) is None
