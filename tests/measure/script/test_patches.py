"""Is nothing left of a change, and is what the script put on top of it left alone?"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from diagnose.measure.script.patches import Patches


class Base:
    def name(self) -> str:
        return "base"


class Derived(Base):
    pass


def _answer() -> str:
    return "original"


answer: Any = _answer


def stand_in() -> str:
    return "ours"


def theirs(*_: object) -> str:
    return "theirs"


def on_top(original: Callable[..., str]) -> Callable[..., str]:
    return lambda *args: f"{original(*args)} and ours"


def test_changes_are_undone_in_reverse_order_even_if_one_fails() -> None:
    order: list[int] = []
    patches = Patches()
    patches.put(Base, "name", on_top)
    for number in range(3):
        patches.on_undo(lambda number=number: order.append(number))  # type: ignore[misc]
    patches.on_undo(lambda: 1 / 0)
    assert Base().name() == "base and ours"
    with pytest.raises(ZeroDivisionError):
        patches.undo()
    assert order == [2, 1, 0]
    assert Base().name() == "base"
    patches.undo()  # a second time does nothing
    assert order == [2, 1, 0]


def test_every_kind_of_change_is_taken_back() -> None:
    code, entered = answer.__code__, []

    @contextlib.contextmanager
    def context() -> Iterator[None]:
        entered.append("in")
        yield
        entered.append("out")

    before = dict(vars(torch.Tensor)), dict(vars(Derived)), os.getcwd
    with Patches() as patches:
        patches.put(torch.Tensor, "item", on_top)  # which a base class has
        patches.put(Derived, "name", on_top)
        patches.put(os, "getcwd", lambda original: theirs)
        patches.set_code(answer, stand_in.__code__)
        patches.enter(context())
        assert Derived().name() == "base and ours"
        item: Any = torch.ones(()).item()
        assert (item, answer(), os.getcwd()) == ("1.0 and ours", "ours", "theirs")
    assert (dict(vars(torch.Tensor)), dict(vars(Derived)), os.getcwd) == before
    assert (answer.__code__, entered) == (code, ["in", "out"])
    assert patches.left_alone == []


def test_what_the_script_put_on_top_stays_and_is_named() -> None:
    name = Base.name
    owner = SimpleNamespace(call=answer)
    whole = Patches()
    part = whole.part()
    part.set(owner, "call", stand_in)
    part.set_code(answer, stand_in.__code__)
    part.put(Base, "name", on_top)
    owner.call = theirs
    Base.name = theirs  # type: ignore[method-assign, assignment]
    try:
        part.undo()
        assert (owner.call(), Base().name()) == ("theirs", "theirs")
    finally:
        Base.name = name  # type: ignore[method-assign]
    assert answer() == "original"
    # What lies below the script's can see that it is over.
    assert not part.active
    assert whole.active
    names = ["test_patches.Base.name", "SimpleNamespace.call"]
    assert [each.removeprefix("tests.measure.script.") for each in whole.left_alone] == names


def test_a_part_is_undone_with_the_whole() -> None:
    whole = Patches()
    part = whole.part()
    part.put(Base, "name", on_top)
    whole.undo()
    assert Base().name() == "base"
    assert not part.active
