"""Are evaluations left out in half of their steps, and is nothing left of it afterwards?"""

from __future__ import annotations

import logging

import torch

from diagnose.measure.script.change.occasions import LeftOut


def test_one_of_every_two_is_left_out_and_gives_the_last_result() -> None:
    runs: list[int] = []

    def evaluate(number: int) -> str:
        runs.append(number)
        return f"result {number}"

    original = evaluate.__code__
    left_out = LeftOut(original, "evaluation")
    left_out.install()
    results = []
    for step in range(40):
        if step % 2 == 0:
            results.append(evaluate(step))
        left_out.end_step(seconds=float(step))
    left_out.remove()

    assert evaluate.__code__ is original
    assert len(left_out.ran) == len(runs)
    assert len(left_out.ran) + len(left_out.left_out) == 20
    assert 9 <= len(left_out.left_out) <= 10  # the first one has to run
    assert all(seconds % 2 == 0 for seconds in left_out.ran + left_out.left_out)
    last = ""
    for step, result in zip(range(0, 40, 2), results, strict=True):
        last = f"result {step}" if step in runs else last
        assert result == last


def test_what_belongs_to_a_graph_is_never_left_out() -> None:
    weight = torch.ones(3, requires_grad=True)

    def score() -> torch.Tensor:
        return weight.sum()

    left_out = LeftOut(score.__code__, "evaluation")
    left_out.install()
    for _ in range(6):
        score().backward()  # type: ignore[no-untyped-call]
        left_out.end_step(1.0)
    left_out.remove()
    assert not left_out.left_out
    assert weight.grad is not None
    assert weight.grad.tolist() == [6.0, 6.0, 6.0]


def test_all_calls_of_a_step_are_treated_alike() -> None:
    lines: list[str] = []
    logger = logging.Logger("lines")
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logger.addHandler(handler)
    left_out = LeftOut(logging.Logger.handle.__code__, "logging")
    left_out.install()
    try:
        for step in range(20):
            logger.warning("%d first", step)
            logger.warning("%d second", step)
            left_out.end_step(1.0)
    finally:
        left_out.remove()
    assert len(lines) == 2 * len(left_out.ran)
    assert {line.split()[0] for line in lines if line.endswith("first")} == {
        line.split()[0] for line in lines if line.endswith("second")
    }
    logger.warning("20 after")
    assert lines[-1] == "20 after"
