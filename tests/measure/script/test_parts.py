"""Do the parts keep their word? Functions exchanged and put back, loops, lengths, kept batches."""

from __future__ import annotations

import itertools
import sys
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from diagnose.measure.script.change.changes import other_optimizer
from diagnose.measure.script.change.replay import (
    LARGE_BATCH_BYTES,
    MOST_KEPT,
    MOST_KEPT_BYTES,
    Feed,
    Feeds,
    KeptCopies,
    join,
)
from diagnose.measure.script.change.swaps import Swap, can_be_replayed
from diagnose.measure.script.watch import ceilings
from diagnose.measure.script.watch.growth import FEWEST_LOOKS, Lengths
from diagnose.measure.script.watch.plan import plan_blocks, plan_counts
from diagnose.measure.script.watch.stacks import Stacks
from diagnose.measure.script.watch.suspects import Group, Judge
from diagnose.measure.script.watch.where import Sources, Span, Spot, block_around, loop_around
from diagnose.measure.script.watch.work import LineWork, Result, StepWork
from diagnose.records.script import Wanted
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


class Maker:
    def __init__(self) -> None:
        self.calls = 0

    def make(self, size: int = 2, *, fill: float = 1.0) -> torch.Tensor:
        self.calls += 1
        return torch.full((size,), fill)


def make_closure(factor: int) -> Any:
    def scaled(value: int) -> int:
        return factor * value

    return scaled


def test_a_function_is_replayed_under_every_name_and_put_back() -> None:
    maker = Maker()
    bound = maker.make  # a name that was taken before
    swap = Swap(Maker.make.__code__)
    swap.record()
    kept = bound(3, fill=2.0)
    swap.remove()
    assert swap.is_ready
    swap.replay()
    assert bound(9) is kept
    assert Maker.make(maker) is kept
    swap.remove()
    assert maker.calls == 1
    assert len(bound(9)) == 9


def test_closures_keep_their_cells() -> None:
    triple = make_closure(3)
    swap = Swap(triple.__code__)
    swap.record()
    assert triple(5) == 15
    swap.replay()
    assert triple(7) == 15
    swap.remove()
    assert triple(7) == 21


def test_what_cannot_be_replayed_is_refused() -> None:
    weight = torch.ones(2, requires_grad=True)

    def graph() -> torch.Tensor:
        return weight * 2

    def nothing() -> None:
        return None

    def numbers() -> Any:
        yield 1

    for function in (graph, nothing):
        swap = Swap(function.__code__)
        swap.record()
        function()
        swap.remove()
        assert not swap.is_ready
        assert swap.refused
    assert not can_be_replayed(numbers.__code__)


def test_only_what_always_grows_is_called_growing(tmp_path: Path) -> None:
    code = """
    def loop(look):
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
            look(step)
    """
    path = write_script(tmp_path, code)
    scope: dict[str, Any] = {"tensor": torch.tensor}
    exec(compile(path.read_text(), str(path), "exec"), scope)
    lengths = Lengths(Sources(tmp_path))
    scope["loop"](lambda step: lengths.look(sys._getframe(1), step))
    grown = {each.name: each for each in lengths.growing()}
    assert set(grown) == {"kept", "losses", "total", "copied"}
    assert grown["kept"].holds_tensors
    assert not grown["losses"].holds_tensors
    assert {name for name, each in grown.items() if each.holds_graph} == {"total"}
    lines = {name: each.filler.line for name, each in grown.items() if each.filler is not None}
    assert lines == {"kept": 6, "losses": 7, "total": 9, "copied": 12}
    assert FEWEST_LOOKS <= 9


def test_hooks_that_are_registered_again_and_again_grow(tmp_path: Path) -> None:
    code = """
    def loop(look, model):
        for step in range(9):
            model.register_forward_hook(print)
            look(step)
    """
    path = write_script(tmp_path, code)
    scope: dict[str, Any] = {}
    exec(compile(path.read_text(), str(path), "exec"), scope)
    lengths = Lengths(Sources(tmp_path))
    scope["loop"](lambda step: lengths.look(sys._getframe(1), step), torch.nn.Linear(2, 2))
    (grown,) = lengths.growing()
    assert grown.name == "model.hooks"
    assert grown.filler is not None
    assert grown.filler.line == 4


def test_batches_are_kept_served_joined_and_converted_once() -> None:
    feeds = Feeds(Sources(Path(__file__).parents[3]))
    feeds.watch_construction()
    feeds.install()
    try:
        data = torch.utils.data.TensorDataset(torch.arange(16).view(16, 1))
        loader = torch.utils.data.DataLoader(data, batch_size=2)
        list(loader)
        (feed,) = feeds.feeds.values()
        assert feed.spot is not None
        assert feed.spot.code.co_name == sys._getframe().f_code.co_name
        assert len(feed.batches) == MOST_KEPT
        assert feed.batch_size == 2
        feeds.choose([feed])
        feeds.mode = "replay"
        served = next(iter(loader))
        assert any(served[0] is kept[0] for kept in feed.batches)
        assert join(feed)
        feeds.mode = "join"
        (joined,) = next(iter(loader))
        assert joined.flatten().tolist() == list(range(2 * MOST_KEPT))
        copies = KeptCopies(feeds)
        copies.install()
        try:
            for _ in range(2):
                assert served[0].float() is served[0].float()
                both = [served[0].double().t().float().contiguous() for _ in range(2)]
                assert both[0] is both[1]
                assert served[0].type() == "torch.LongTensor"
                copies.remove()
                copies.install()
            assert joined.clone().float() is not joined.clone().float()
        finally:
            copies.remove()
        assert served[0].float() is not served[0].float()
    finally:
        feeds.remove()
        feeds.forget()


def test_batches_of_other_shapes_are_not_joined() -> None:
    feeds = Feeds(Sources(Path(__file__).parents[3]))
    feeds.install()
    try:
        rows = [torch.ones(1, 2 + number) for number in range(MOST_KEPT)]
        list(torch.utils.data.DataLoader(rows, batch_size=None))  # type: ignore[arg-type]
        (feed,) = feeds.feeds.values()
        assert not join(feed)
    finally:
        feeds.remove()


def test_another_form_of_the_update_is_tried_only_where_there_is_one() -> None:
    parameter = torch.nn.Parameter(torch.ones(2))
    adam = torch.optim.AdamW([parameter])
    variant = other_optimizer(adam, None)
    assert variant is not None
    before = dict(adam.param_groups[0])
    variant.begin()
    assert adam.param_groups[0]["fused"]
    variant.end()
    assert adam.param_groups[0] == before
    assert other_optimizer(torch.optim.AdamW([parameter], fused=True), None) is None
    assert other_optimizer(torch.optim.LBFGS([parameter]), None) is None


def test_passes_fit_into_the_time_but_never_below_what_an_interval_needs() -> None:
    usual = plan_counts(Wanted(seconds=60), 0.1, ranks=1)
    assert usual.plain + usual.sampled < 600 / 2
    slow = plan_counts(Wanted(seconds=60), 30.0, ranks=1)
    assert slow.plain == slow.sampled == FEWEST_FOR_ROBUST_INTERVAL
    assert plan_blocks(Wanted(seconds=60), 30.0, 10, 0.4) == FEWEST_FOR_ROBUST_INTERVAL
    assert plan_counts(Wanted(seconds=60, steps=100), 0.001, ranks=1).plain <= 100


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


@pytest.mark.parametrize(("part", "kept"), [(8, MOST_KEPT), (2, 2), (1, 1)])
def test_batches_are_kept_as_far_as_the_memory_for_them_goes(part: int, kept: int) -> None:
    feed = Feed(None, 2, None, None, 0, 0)
    for _ in range(2 * MOST_KEPT):
        feed.keep(torch.empty(MOST_KEPT_BYTES // part, dtype=torch.uint8))
    assert len(feed.batches) == kept
    assert feed.serve("replay") is not None


def test_frames_of_two_moments_are_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def code(name: str) -> Any:
        return compile("", name, "exec")

    module, optimizer = code("train.py"), code("optim.py")
    outer = SimpleNamespace(f_code=module, f_lasti=2, f_back=None)
    inner = SimpleNamespace(f_code=optimizer, f_lasti=4, f_back=outer)
    moved = SimpleNamespace(f_code=module, f_lasti=8, f_back=None)
    stacks = Stacks(Sources(Path.cwd()), frozenset())
    moments = iter([inner, moved, moved, moved])  # the optimiser ended while its frames were read
    main = threading.get_ident()
    monkeypatch.setattr(sys, "_current_frames", lambda: {main: next(moments)})
    assert stacks._look() == [(module, 8)]


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


def test_of_large_batches_only_one_conversion_is_kept() -> None:
    feeds = Feeds(Sources(Path.cwd()))
    feed = Feed(None, 2, None, None, 0, 0)
    feed.batches = [torch.zeros(LARGE_BATCH_BYTES + 1, dtype=torch.uint8) for _ in range(2)]
    feeds.feeds[0] = feed
    copies = KeptCopies(feeds)
    copies.install()
    try:
        served = {feed.serve("replay").data_ptr() for _ in range(4)}
    finally:
        copies.remove()
    assert len(served) == 1
    assert len({feed.serve("replay").data_ptr() for _ in range(4)}) == 2
