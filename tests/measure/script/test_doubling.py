"""Does a statement run twice without anybody else noticing, and is it refused where it must be?"""

from __future__ import annotations

import linecache
import sys
import warnings
from pathlib import Path
from types import CodeType
from typing import Any

import pytest
import torch

from diagnose.measure.script.change.doubling import FEWEST_RUNS, Doubling
from diagnose.measure.script.patches import Patches
from tests.support.script_runs import line_of, write_script

# Long enough that the second run of an exhausted loop cannot be mistaken for the first.
LONG = 20_000


class Script:
    """A file of the user's, executed as a module is, with a marked line."""

    def __init__(self, directory: Path, code: str) -> None:
        linecache.clearcache()
        self.path = write_script(directory, code)
        self.seen: list[Any] = []
        self.names: dict[str, Any] = {"see": self.seen.append, "sys": sys, "torch": torch}
        exec(self.compile(), self.names)

    def compile(self) -> CodeType:
        source = self.path.read_text(encoding="utf-8")
        return compile(source, str(self.path), "exec", dont_inherit=True)

    def code(self, function: str = "work") -> CodeType:
        found: CodeType = self.names[function].__code__
        return found

    def double(self, code: CodeType | None = None, mark: str = "# here") -> Doubling:
        text = self.path.read_text(encoding="utf-8")
        anchors = [line_of(self.path, "# anchor")] if "# anchor" in text else []
        return Doubling(code or self.code(), line_of(self.path, mark), anchors)


# What it is about, the code, its result and how often `see` is called with both runs.
TWICE: list[tuple[str, str, object, int]] = [
    (
        "the outermost loop",
        """
        def work(x):
            rows, total = [], 0
            for outer in range(2):
                for value in x:
                    see(value)  # here
                    rows.append(value)
                    total += value
            return rows, total
        """,
        ([1, 2, 1, 2], 6),
        8,
    ),
    (
        "the loop without the anchor",
        """
        def work(x):
            for value in x:
                for again in range(2):
                    see(value)  # here
                value  # anchor
            return value
        """,
        2,
        8,
    ),
    ("the returned value", "def work(x):\n    return [see(v) or v for v in x]  # here", [1, 2], 4),
    ("a sum", "def work(x):\n    y = sum(see(1) or v for v in x)  # here\n    return y", 3, 4),
    (
        "its own argument",
        """
        def work(x):
            if x:
                try:
                    x = [0, *x, see(1) or 3]  # here
                finally:
                    pass
            return x
        """,
        [0, 1, 2, 3],
        2,
    ),
    (
        "a private name of a class",
        """
        class State:
            def work(self, x):
                self.__total = 1
                self.__total = self.__total * 2 + len(see(1) or ())  # here
                return vars(self)
        work = State().work
        """,
        {"_State__total": 2},
        2,
    ),
    (
        "a graph as deep as before",
        """
        def work(x):
            y = torch.ones((), requires_grad=True)
            for row in range(3):
                y = see(row) or y * 2  # here
            node, depth = y.grad_fn, 0
            while node.name() == "MulBackward0":
                node, depth = node.next_functions[0][0], depth + 1
            return depth
        """,
        3,
        6,
    ),
    (
        "a recursion, but not at every depth",
        """
        def descend(left):
            see(left)
            if left:
                descend(left - 1)  # here
        def work(x):
            descend(10)
        """,
        None,
        1 + 2 * 10,
    ),
]


@pytest.mark.parametrize(("what", "code", "result", "runs"), TWICE)
def test_the_statement_runs_twice_and_the_result_stays(
    tmp_path: Path, what: str, code: str, result: object, runs: int
) -> None:
    script = Script(tmp_path, code)
    doubled = script.code("descend" if "recursion" in what else "work")
    if what == "a sum":  # a comprehension leads to its function
        doubled = next(each for each in doubled.co_consts if isinstance(each, CodeType))
    with Patches() as patches:
        script.double(doubled).begin(patches)
        assert script.names["work"]([1, 2]) == result
    assert len(script.seen) == runs
    script.seen.clear()
    assert script.names["work"]([1, 2]) == result
    assert len(script.seen) == (runs + 1) // 2


def test_a_forward_is_doubled_inside_a_training_run(tmp_path: Path) -> None:
    script = Script(
        tmp_path,
        """
        class Base(torch.nn.Module):
            def forward(self, x):
                see(sys._getframe(0).f_lineno)
                return x * self.scale

        class Model(Base):
            def __init__(self):
                super().__init__()
                self.scale = torch.nn.Parameter(torch.ones(()))
                self.narrow = torch.nn.Linear(4, 2)

            def forward(self, x):
                x = self.narrow(super().forward(
                    x  # here
                ))
                return x.sum()

        def train(steps, after):
            model = Model()
            for step in range(steps):
                model(torch.ones(3, 4)).backward()
                after(step)
        """,
    )
    doubling = script.double(script.names["Model"].forward.__code__)
    patches, counts = Patches(), []

    def after(step: int) -> None:
        counts.append(len(script.seen))
        if step == 1:
            doubling.begin(patches)
        elif step == 3:
            patches.undo()

    script.names["train"](6, after)
    assert counts == [1, 2, 4, 6, 7, 8]
    assert set(script.seen) == {4}
    assert (doubling.uses(), doubling.refused) == (2, "")


def test_every_closure_of_the_code_is_doubled_in_its_own_cells(tmp_path: Path) -> None:
    script = Script(
        tmp_path,
        """
        import functools

        def named(function):
            @functools.wraps(function)
            def call(*args, **kwargs):
                return function(*args, **kwargs)
            return call

        def make(zeta, alpha):
            count = 0
            @named
            def scaled(value, *, plus=1):
                nonlocal count
                see(zeta)
                count += alpha * value + plus  # here
                return count, zeta
            return scaled
        """,
    )
    first, second = script.names["make"](1, 10), script.names["make"](2, 20)
    inner, code = first.__wrapped__, first.__wrapped__.__code__
    doubling = script.double(code)
    with Patches() as patches:
        doubling.begin(patches)
        copy = inner.__code__
        assert copy is second.__wrapped__.__code__ is not code
        assert (copy.co_freevars, copy.co_filename) == (code.co_freevars, code.co_filename)
        lines = {line for *_, line in copy.co_lines() if line is not None}
        assert lines == {line for *_, line in code.co_lines() if line is not None}
        assert first(3) == (31, 1)  # a counter does not count the second run
        assert second(3, plus=2) == (62, 2)
    assert inner.__code__ is second.__wrapped__.__code__ is code
    assert doubling.uses() == 2
    assert first(1) == (42, 1)


def test_an_error_of_the_users_stays_theirs(tmp_path: Path) -> None:
    script = Script(tmp_path, "def work(x):\n    y = 1 / x  # here\n    return y")
    doubling = script.double()
    with Patches() as patches:
        doubling.begin(patches)
        with pytest.raises(ZeroDivisionError) as caught:
            script.names["work"](0)
    assert caught.traceback[-1].lineno + 1 == line_of(script.path, "# here")
    with Patches() as patches:
        doubling.begin(patches)
        assert script.names["work"](2) == 0.5
    assert doubling.uses() == 1


@pytest.mark.parametrize(
    "loop",
    [
        "for value in x: see(value)  # here",
        "total = sum(x)  # here",
        "while len(kept) < count: kept.add(len(kept))  # here",
    ],
)
def test_work_that_is_used_up_by_its_first_run_is_refused_afterwards(
    tmp_path: Path, loop: str
) -> None:
    script = Script(tmp_path, f"kept = set()\ndef work(x, count):\n    {loop}\n    return 1")
    doubling = script.double()
    assert doubling.refused == ""
    for window in range(FEWEST_RUNS + 2):
        with Patches() as patches:
            doubling.begin(patches)
            script.names["kept"].clear()
            script.names["work"](iter([1] * LONG), LONG)
        assert bool(doubling.refused) == (window >= FEWEST_RUNS - 1)
    assert doubling.uses() == FEWEST_RUNS  # a later window changes nothing any more


IN_A_LOOP = "for a in x:\n        {}\n        step = a  # anchor"


@pytest.mark.parametrize(
    "statement",
    [
        "loss.backward()",
        "optimizer.step()",
        "batch = next(x)",
        "batch = x.pop()",
        "batch = x.get()",
        "print(x)",
        "y = yield x",
        "raise ValueError(x)",
        "del x[0]",
        "import os",
        "return",
        "if x:  # here\n        pass",
        "a = 1; b = 2",
        "f = lambda: x; f()",
        "def inner(): return x",
        "def inner():\n        return x + 1  # here",
        IN_A_LOOP.format("for b in a:\n            if b: return x  # here"),
        IN_A_LOOP.format("if a:\n            break  # here"),
        IN_A_LOOP.format("if a:\n            continue  # here"),
    ],
)
def test_what_must_not_run_twice_is_refused(tmp_path: Path, statement: str) -> None:
    statement += "" if "# here" in statement else "  # here"
    script = Script(tmp_path, f"def work(x):\n    {statement}\n    return x")
    code, doubling = script.code(), script.double()
    assert doubling.refused
    with Patches() as patches:
        doubling.begin(patches)
        assert script.code() is code


@pytest.mark.parametrize(
    "statement",
    [
        IN_A_LOOP.format("for b in a:\n            if b: break  # here"),
        IN_A_LOOP.format("if a:\n            return x  # here"),
    ],
)
def test_a_jump_inside_the_statement_is_not_refused(tmp_path: Path, statement: str) -> None:
    script = Script(tmp_path, f"def work(x):\n    {statement}\n    return x")
    assert script.double().refused == ""


def test_code_that_the_file_does_not_hold_is_refused(tmp_path: Path) -> None:
    script = Script(tmp_path, "short = lambda x: x\ndef work(x):\n    y = x + 1  # here\n")
    code = script.code()
    assert script.double().refused == ""
    assert Doubling(script.code("short"), 1, ()).refused
    assert Doubling(script.compile(), 1, ()).refused
    for text in (
        "short = 1\ndef work(x):\n    y = x + 2  # here\n",
        "def work(x):\n    y = (\n",
        "",
    ):
        script.path.write_text(text)
        linecache.clearcache()
        assert Doubling(code, 3, ()).refused


def test_the_training_loop_is_refused_and_what_it_calls_every_step_is_not(tmp_path: Path) -> None:
    script = Script(
        tmp_path,
        """
        def work(after):
            y = len("step")  # here
            after()

        def train(steps, after):
            z = len('x')  # loop
            for step in range(steps):
                work(after)

        def main(steps, after):
            w = len('x')  # main
            train(steps, after)
        """,
    )
    step = script.double()
    loop, main = (
        script.double(script.code("train"), "# loop"),
        script.double(script.code("main"), "# main"),
    )
    assert {each.refused for each in (step, loop, main)} == {""}
    patches = [Patches()]

    def after() -> None:  # without a loop of its own, which would be one around the step
        patches[0].undo()
        patches[0] = Patches()
        step.begin(patches[0])
        loop.begin(patches[0])
        main.begin(patches[0])

    script.names["main"](3, after)
    patches[0].undo()
    assert (step.refused, step.uses()) == ("", 2)
    assert "not called again" in loop.refused
    assert "not called again" in main.refused


def test_warnings_of_the_file_are_not_given_again(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        script = Script(tmp_path, "def work(x):\n    y = x is 1  # here\n    return y\n")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert script.double().refused == ""
