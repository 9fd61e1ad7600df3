"""Do the parts that watch keep their word? Loops, names, lengths, groups, shares of the time."""

from __future__ import annotations

import itertools
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from diagnose.measure.script.plan import Timetable
from diagnose.measure.script.ranks import Ranks
from diagnose.measure.script.watch import ceilings
from diagnose.measure.script.watch.growth import Lengths
from diagnose.measure.script.watch.suspects import Group, Judge
from diagnose.measure.script.watch.where import Sources, Span, Spot, block_around, loop_around
from diagnose.measure.script.watch.work import LineWork, Result, StepWork
from diagnose.records.script import Options
from diagnose.records.stats import FEWEST_FOR_ROBUST_INTERVAL
from tests.support.script_runs import write_script

LOOPS = """
def train(model, optimizer, batches):
    for epoch in range(3):
        for batch in batches:
            for part in batch:
                loss = model(part)
                loss.backward()
            optimizer.step()
            for row in batch:
                for value in row:
                    print(value)
            if epoch:
                with open("x") as file:
                    file.read()
"""


@pytest.fixture
def train(tmp_path: Path) -> Any:
    path = write_script(tmp_path, LOOPS)
    scope: dict[str, Any] = {}
    exec(compile(path.read_text(), str(path), "exec"), scope)
    return scope["train"].__code__


def test_a_loop_around_the_step_itself_is_not_something_that_a_step_repeats(train: Any) -> None:
    anchors = {6, 7, 8}
    assert loop_around(Spot(train, 11), anchors) == (9, 11)
    assert loop_around(Spot(train, 6), anchors) is None
    assert block_around(Spot(train, 14), anchors) == (12, 14)
    assert loop_around(Spot(train, 6), ()) == (3, 14)


def test_file_names_are_those_that_the_user_knows(tmp_path: Path, train: Any) -> None:
    assert Sources(tmp_path).site(Spot(train, 6)).file == "train.py"
    assert Sources(tmp_path / "elsewhere").site(Spot(train, 6)).file == str(tmp_path / "train.py")
    assert Sources(tmp_path).site(Spot(train, 7)).code == "loss.backward()"
    assert not Sources(tmp_path).is_users(torch.nn.Linear.forward.__code__)
    assert not Sources(tmp_path).is_users(Sources.site.__code__)


def test_only_what_always_grows_is_called_growing(tmp_path: Path) -> None:
    code = """
    def loop(look, model):
        kept, losses, window, depth = [], [], [0], tensor([1.0], requires_grad=True)
        total, unread, copied = depth, [], []
        for step in range(9):
            kept.append(tensor([1.0]))
            losses.append(1.0)
            window = [0] * (step % 3 + 1)
            total = total + depth
            unread = unread if step % 7 else []
            unread.append(step)
            copied = [*copied, step]
            model.register_forward_hook(print)
            look(step)
    """
    path = write_script(tmp_path, code)
    scope: dict[str, Any] = {"tensor": torch.tensor}
    exec(compile(path.read_text(), str(path), "exec"), scope)
    lengths = Lengths(Sources(tmp_path))
    scope["loop"](lambda step: lengths.look(sys._getframe(1), step), torch.nn.Linear(2, 2))
    grown = {each.name: each for each in lengths.growing()}
    lines = {name: each.filler.line for name, each in grown.items() if each.filler is not None}
    assert lines == {"kept": 6, "losses": 7, "total": 9, "copied": 12, "model.hooks": 13}
    assert {name for name, each in grown.items() if each.holds_tensors} == {"kept", "total"}
    assert {name for name, each in grown.items() if each.holds_graph} == {"total"}


def timetable(step_seconds: float, **options: Any) -> Timetable:
    table = Timetable(Options(seconds=60, **options), Ranks())
    table.plan(step_seconds)
    return table


def test_passes_fit_into_the_time_but_never_below_what_an_interval_needs() -> None:
    usual, slow = timetable(0.1), timetable(30.0)
    assert usual.counts.plain + usual.counts.sampled < 600 / 2
    assert slow.counts.plain == slow.counts.sampled == FEWEST_FOR_ROBUST_INTERVAL
    assert slow.plan_blocks(30.0, 10, 0.4) == FEWEST_FOR_ROBUST_INTERVAL
    assert timetable(0.001, steps=100).counts.plain <= 100


def test_work_has_to_do_with_what_its_functions_name() -> None:
    history = [1.0]

    def total() -> float:
        return sum(history)

    def other() -> int:
        return 3

    group = Group("total", "host", spots={Spot(total.__code__, 1): 1.0})
    assert group.mentions("history")
    assert not Group("other", "host", spots={Spot(other.__code__, 1): 1.0}).mentions("history")


def test_of_a_module_only_the_lines_themselves_count(tmp_path: Path) -> None:
    path = write_script(
        tmp_path, "history = [1]\nfor each in history:\n    total = each\nrest = 1\n"
    )
    code = compile(path.read_text(), str(path), "exec")
    loop = Group("loop", "host", span=Span(2, 3), spots={Spot(code, 3): 1.0})
    assert loop.mentions("history")
    assert not Group("line", "host", spots={Spot(code, 4): 1.0}).mentions("history")


def result(value: int, seconds: float) -> Result:
    return Result((0.0, b"(512,)" + bytes(range(value, value + 16))), 512, seconds)


def test_what_repeats_is_taken_out_of_its_function_and_out_of_its_line() -> None:
    def score() -> int:
        return 3

    code = score.__code__
    again, fresh, mixed = (Spot(code, line) for line in (1, 2, 3))
    steps = []
    for batch in range(2):
        step = StepWork(inputs=[(float(batch), b"")])
        made = {
            again: [result(100, 1.0)],
            fresh: [result(batch, 1.0)],
            mixed: [result(101, 0.25), result(10 + batch, 0.75)],
        }
        for spot, results in made.items():
            step.lines[spot.place] = LineWork(forward_seconds=1.0, launches=8, results=results)
        steps.append(step)
    spots = {again: 2.0, fresh: 3.0, mixed: 4.0}
    group = Group("score", "host", code, seconds=9.0, torch_seconds=3.0, spots=spots)
    judge = Judge(Sources(Path.cwd()), steps, 1.0)
    rest, repeated = judge.split(group)
    assert (rest.key, rest.code, rest.seconds, rest.torch_seconds) == ("score", code, 6.0, 2.0)
    assert rest.spots == {again: 0.0, fresh: 3.0, mixed: 3.0}
    assert (repeated.code, repeated.seconds, repeated.torch_seconds) == (None, 3.0, 1.0)
    assert repeated.spots == {again: 2.0, mixed: 1.0}
    of_rest, of_repeated = (judge.suspect(each, 0.0) for each in (rest, repeated))
    assert of_rest is not None
    assert of_repeated is not None
    assert (of_rest.repeats, of_rest.operator_seconds, of_rest.launches) == (False, 1.75, 14)
    assert (of_repeated.repeats, of_repeated.operator_seconds) == (True, 1.25)
    assert of_repeated.launches == 10
    line, loop = Group("line", "forward", spots={mixed: 4.0}), Span(3, 3)
    assert [each.key for each in judge.split(line)] == ["line", "repeated line"]
    assert judge.split(replace(line, span=loop)) == [replace(line, span=loop)]


def test_what_ran_twice_may_be_a_part_of_its_function() -> None:
    code = compile("", "train.py", "exec")
    other = compile("other = 1", "other.py", "exec")
    spots = {Spot(code, 3): 1.0, Spot(code, 4): 2.0, Spot(code, 5): 4.0, Spot(other, 4): 1.0}
    group = Group("function", "host", spots=spots)
    assert group.share_of("train.py", Span(4, 5)) == 0.75
    assert group.share_of("train.py", Span(3, 3)) == 0.125
    assert Group("input", "input", spots={}).share_of("train.py", Span(3, 3)) == 0.0


def test_what_fresh_memory_costs_is_more_than_filling_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock by which the first filling takes 3 s and the second 1 s."""
    times = itertools.accumulate(itertools.cycle((3.0, 1.0, 0.0)), initial=0.0)
    monkeypatch.setattr(ceilings, "time", SimpleNamespace(perf_counter=lambda: next(times)))
    assert ceilings._fresh_rate() == ceilings._FRESH_BYTES / 2
