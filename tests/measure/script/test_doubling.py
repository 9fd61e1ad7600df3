"""Does a statement run twice without anybody else noticing?"""

from __future__ import annotations

import sys
from pathlib import Path
from types import CodeType, FunctionType

import pytest
import torch

from tests.support.doubled_scripts import Script
from tests.support.script_runs import line_of


def test_a_forward_is_doubled_inside_a_training_run(tmp_path: Path) -> None:
    script = Script(
        tmp_path,
        """
        import torch

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
    script.names["sys"] = sys
    doubling = script.double(script.code("Model.forward"))
    assert doubling.refused == ""
    counts = []

    def after(step: int) -> None:
        counts.append(len(script.seen))
        if step == 1:
            doubling.begin()
        elif step == 3:
            doubling.end()

    script.names["train"](6, after)
    assert counts == [1, 2, 4, 6, 7, 8]
    assert set(script.seen) == {6}
    assert doubling.uses() == 2


@pytest.mark.parametrize(
    ("code", "result", "runs"),
    [
        pytest.param(
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
            id="outermost loop",
        ),
        pytest.param(
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
            id="loop without the anchor",
        ),
        pytest.param(
            """
            def work(x):
                return [
                    see(value) or value
                    for value in x  # here
                ]
            """,
            [1, 2],
            4,
            id="returned value",
        ),
        pytest.param(
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
            id="its own argument",
        ),
    ],
)
def test_the_statement_runs_twice_and_the_result_stays(
    tmp_path: Path, code: str, result: object, runs: int
) -> None:
    script = Script(tmp_path, code)
    work = script.names["work"]
    doubling = script.double(work.__code__, ("# anchor",) if "# anchor" in code else ())
    doubling.begin()
    assert work([1, 2]) == result
    doubling.end()
    assert len(script.seen) == runs
    script.seen.clear()
    assert work([1, 2]) == result
    assert len(script.seen) == runs / 2


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
    inner = first.__wrapped__
    code = inner.__code__
    doubling = script.double(code)
    assert doubling.refused == ""
    doubling.begin()
    assert inner.__code__ is second.__wrapped__.__code__ is not code
    assert inner.__code__.co_freevars == code.co_freevars
    assert first(3) == (31, 1)  # a counter does not count the second run
    assert second(3, plus=2) == (62, 2)
    doubling.end()
    assert inner.__code__ is second.__wrapped__.__code__ is code
    assert doubling.uses() == 2
    assert first(1) == (42, 1)


def test_private_names_and_attributes_are_those_of_the_class(tmp_path: Path) -> None:
    script = Script(
        tmp_path,
        """
        class State:
            def __init__(self):
                self.__total = 1
            def double(self):
                self.__total = self.__total * 2 + len(see(1) or ())  # here
                return self.__total
        """,
    )
    state = script.names["State"]()
    doubling = script.double(script.code("State.double"))
    doubling.begin()
    assert state.double() == 2
    doubling.end()
    assert len(script.seen) == 2
    assert vars(state) == {"_State__total": 2}


def test_recursion_is_doubled_once_and_not_at_every_depth(tmp_path: Path) -> None:
    script = Script(
        tmp_path,
        """
        def depth(left):
            see(left)
            if left:
                depth(left - 1)  # here
        """,
    )
    doubling = script.double(script.code("depth"))
    doubling.begin()
    script.names["depth"](10)
    doubling.end()
    assert len(script.seen) == 1 + 2 * 10


def test_a_comprehension_leads_to_its_function(tmp_path: Path) -> None:
    script = Script(
        tmp_path,
        """
        def work(x):
            total = sum(see(1) or value for value in x)  # here
            return total
        """,
    )
    work = script.names["work"]
    inner = next(each for each in work.__code__.co_consts if isinstance(each, CodeType))
    doubling = script.double(inner)
    doubling.begin()
    assert work([1, 2]) == 3
    doubling.end()
    assert len(script.seen) == 4


def test_an_error_of_the_users_stays_theirs_and_the_code_is_restored(tmp_path: Path) -> None:
    script = Script(
        tmp_path,
        """
        def work(x):
            y = 1 / x  # here
            return y
        """,
    )
    work = script.names["work"]
    code = work.__code__
    doubling = script.double(code)
    doubling.begin()
    with pytest.raises(ZeroDivisionError) as caught:
        work(0)
    assert caught.traceback[-1].lineno + 1 == line_of(script.path, "# here")
    doubling.end()
    assert work.__code__ is code
    doubling.begin()
    assert work(2) == 0.5
    doubling.end()
    assert doubling.uses() == 1


def test_lines_of_the_copy_are_those_of_the_file(tmp_path: Path) -> None:
    script = Script(
        tmp_path,
        """
        @staticmethod
        def work(x):
            first = [x]
            for value in x:
                first.append(
                    value  # here
                )
            return first
        """,
    )
    work: FunctionType = script.names["work"].__func__
    code = work.__code__
    doubling = script.double(code)
    doubling.begin()
    copy = work.__code__
    doubling.end()
    assert copy is not code
    assert copy.co_filename == code.co_filename
    lines = {line for *_, line in copy.co_lines() if line is not None}
    assert lines == {line for *_, line in code.co_lines()}


def test_the_graph_of_a_doubled_loop_is_as_deep_as_before(tmp_path: Path) -> None:
    script = Script(
        tmp_path,
        """
        def work(x):
            for row in range(3):
                x = see(row) or x * 2  # here
            return x
        """,
    )
    doubling = script.double(script.code("work"))
    doubling.begin()
    result = script.names["work"](torch.ones((), requires_grad=True))
    doubling.end()
    result.backward()
    assert script.seen == [0, 1, 2, 0, 1, 2]
    node, depth = result.grad_fn, 0
    while node.name() == "MulBackward0":
        node, depth = node.next_functions[0][0], depth + 1
    assert depth == 3
