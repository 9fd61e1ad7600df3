"""Do the parts that watch keep their word? Loops, names, lengths, groups, shares of the time."""

from __future__ import annotations

import itertools
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from diagnose.measure.script import plan
from diagnose.measure.script.patches import Patches
from diagnose.measure.script.plan import Timetable
from diagnose.measure.script.ranks import Ranks
from diagnose.measure.script.watch import ceilings
from diagnose.measure.script.watch.growth import Lengths
from diagnose.measure.script.watch.origins import Origins
from diagnose.measure.script.watch.prints import Result
from diagnose.measure.script.watch.repeated import Repeated, find_repeated
from diagnose.measure.script.watch.suspects import Group, Judge
from diagnose.measure.script.watch.where import Sources, Span, Spot, block_around, loop_around
from diagnose.measure.script.watch.work import LineWork, StepWork
from diagnose.records.script import Options
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


def test_a_loop_is_named_where_none_of_its_lines_has_most_of_its_time(tmp_path: Path) -> None:
    path = write_script(
        tmp_path,
        """
        def encode(text):
            for letter in text:
                place = find(letter)
                if place:
                    planes[place] = 1.0

        def batches():
            while True:
                rows = read()
                if rows:
                    yield make(rows)
        """,
    )
    scope: dict[str, Any] = {}
    exec(compile(path.read_text(), str(path), "exec"), scope)
    encode, batches = (scope[name].__code__ for name in ("encode", "batches"))

    def named(code: Any, seconds: dict[int, float], phase: Any = "input") -> int:
        first = code.co_firstlineno
        group = Group("any", phase)
        group.spots |= {Spot(code, first + line): each for line, each in seconds.items()}
        assert group.hottest is not None
        return int(group.hottest.line - first)

    assert named(encode, {1: 0.3, 2: 0.2, 4: 0.4}) == 1
    assert named(encode, {1: 0.2, 2: 0.2, 4: 0.5}) == 4
    assert named(encode, {1: 0.3, 2: 0.2, 4: 0.4}, "forward") == 4
    assert named(batches, {2: 0.3, 3: 0.2, 4: 0.4}) == 4


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


class Errors:
    """A callback that keeps a table of everything."""

    def __init__(self) -> None:
        self.table, self.last = np.zeros(1), np.zeros(3)


def test_a_table_that_grows_in_one_of_several_callbacks_is_found() -> None:
    trainer = SimpleNamespace(callbacks=[Errors(), object()])
    lengths = Lengths(Sources(Path.cwd()))
    for step in range(6):
        errors = trainer.callbacks[0]
        errors.table = np.concatenate([errors.table, errors.last])
        lengths.look(sys._getframe(), step)
    (grown,) = (each for each in lengths.growing() if each.name.startswith("trainer."))
    assert (grown.name, grown.per_step) == ("trainer.callbacks.Errors.table", 3)
    assert not grown.holds_tensors
    assert grown.filler is not None
    assert Path(grown.filler.path) == Path(__file__)


def test_anomaly_detection_is_off_only_as_long_as_that_is_tried() -> None:
    origins = Origins(Sources(Path(__file__).parent))
    with Patches() as patches:
        origins.install(patches)
        with torch.autograd.set_detect_anomaly(True):
            with patches.part() as trial:
                origins.switch_anomalies_off(trial)
                assert not torch.is_anomaly_enabled()
                torch.autograd.set_detect_anomaly(True)  # as a step may do again
                assert not torch.is_anomaly_enabled()
            assert torch.is_anomaly_enabled()
    assert not torch.is_anomaly_enabled()
    assert origins.anomaly_spot is not None


def test_a_model_became_double_where_it_was_converted_and_not_where_it_was_moved() -> None:
    origins = Origins(Sources(Path(__file__).parent))
    with Patches() as patches:
        origins.install(patches)
        layer = torch.nn.Linear(2, 2)
        layer.double()
        converted = origins.double_spot
        torch.nn.Sequential(layer).to("cpu")
        assert converted is not None
        assert origins.double_spot == converted
        layer.float()
        layer.to(torch.float64)
    assert origins.double_spot != converted


class Metric(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.answers: list[torch.Tensor] = []


def test_what_a_part_of_a_trained_model_keeps_is_found_without_a_name_for_it() -> None:
    metric = Metric()
    model = torch.nn.ModuleDict({"auroc": metric})
    lengths = Lengths(Sources(Path.cwd()))
    for step in range(6):
        metric.answers.append(torch.ones(3))
        lengths.look(None, step, [model])
    (grown,) = lengths.growing()
    assert (grown.name, grown.holds_tensors) == ("ModuleDict.auroc.answers", True)
    assert grown.names == ["auroc", "answers"]


def timetable(step_seconds: float, **options: Any) -> Timetable:
    table = Timetable(Options(seconds=60, **options), Ranks())
    table.plan(step_seconds)
    return table


def test_rounds_grow_until_their_windows_are_long_and_looks_take_a_small_share() -> None:
    rounds = list(itertools.islice(timetable(0.02).rounds(), 8))
    assert (rounds[0].plain, rounds[0].sampled, rounds[0].window) == (6, 8, 1)
    assert [each.window for each in rounds[:5]] == [1, 2, 4, 8, 8]
    assert all(a.plain <= b.plain for a, b in itertools.pairwise(rounds))
    assert rounds[-1].plain * 0.02 < 0.05 * 60
    (slow,) = itertools.islice(timetable(5.0).rounds(), 1)
    assert slow.plain + slow.sampled <= 4
    (fast,) = itertools.islice(timetable(0.001).rounds(), 1)
    assert fast.window == 20


def test_fewer_changes_are_tried_where_the_time_is_short() -> None:
    assert timetable(0.02).fitting_sides(2) > 10
    assert timetable(5.0).fitting_sides(2) == 0
    assert timetable(0.02, steps=90).fitting_sides(2) == 7


def test_the_warm_up_is_short_for_slow_steps_and_for_fast_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for step_seconds, expected in ((0.001, 20), (0.1, 11), (0.5, 5), (5.0, 2)):
        clock = itertools.count(0, step_seconds)
        monkeypatch.setattr(plan, "time", SimpleNamespace(perf_counter=lambda c=clock: next(c)))
        assert sum(1 for _ in Timetable(Options(seconds=60), Ranks()).warm_up()) == expected


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


def result(value: int, seconds: float, elements: int = 512) -> Result:
    return Result("mul", (0.0, b"(512,)" + bytes(range(value, value + 16))), elements, seconds)


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
    judge = Judge(Sources(Path.cwd()), steps, 1.0, {})
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


def test_what_is_made_several_times_in_one_step_repeats_with_its_backward_pass() -> None:
    place = Spot(result.__code__, 1).place
    other, rows = (Spot(result.__code__, line).place for line in (2, 3))
    steps = []
    for batch in range(2):
        step = StepWork(inputs=[(float(batch), b"")])
        thrice, once = [result(batch, 1.0, 5000)] * 3, [result(batch, 1.0), result(batch + 8, 1.0)]
        row = LineWork(results=[result(batch, 1.0)] * 3)  # that a loop meets again
        step.lines = {place: LineWork(results=thrice), other: LineWork(results=once), rows: row}
        steps.append(step)
    assert find_repeated(steps) == {place: Repeated(10_000, 2 / 3, 2 / 3)}
    # What is the same with another batch depends on nothing that is trained.
    steps[1].lines[place] = steps[0].lines[place]
    assert find_repeated(steps) == {place: Repeated(15_000, 1.0, 0.0)}


def test_what_fresh_memory_costs_is_more_than_filling_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock by which the first filling takes 3 s and the second 1 s."""
    times = itertools.accumulate(itertools.cycle((3.0, 1.0, 0.0)), initial=0.0)
    monkeypatch.setattr(ceilings, "time", SimpleNamespace(perf_counter=lambda: next(times)))
    assert ceilings._fresh_rate() == ceilings._FRESH_BYTES / 2
