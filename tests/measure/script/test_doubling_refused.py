"""Is a line refused where running it twice would break the script, or would say nothing?"""

from __future__ import annotations

import linecache
import warnings
from pathlib import Path

import pytest

from diagnose.measure.script.change.doubling import FEWEST_RUNS, Doubling
from tests.support.doubled_scripts import Script
from tests.support.script_runs import line_of

# Long enough that the second run of an exhausted loop cannot be mistaken for the first.
LONG = 20_000


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
    doubling = script.double(script.code("work"))
    assert doubling.refused == ""
    for window in range(FEWEST_RUNS + 2):
        doubling.begin()
        script.names["kept"].clear()
        script.names["work"](iter([1] * LONG), LONG)
        doubling.end()
        assert bool(doubling.refused) == (window >= FEWEST_RUNS - 1)
    assert "used up" in doubling.refused
    assert doubling.uses() == FEWEST_RUNS  # a later window changes nothing any more


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
    ],
)
def test_what_must_not_run_twice_is_refused(tmp_path: Path, statement: str) -> None:
    statement += "" if "# here" in statement else "  # here"
    script = Script(tmp_path, f"def work(x):\n    {statement}\n    return x")
    work = script.names["work"]
    code = work.__code__
    doubling = script.double(code)
    assert doubling.refused
    doubling.begin()
    assert work.__code__ is code
    doubling.end()


@pytest.mark.parametrize("jump", ["break", "continue", "return x"])
def test_a_jump_out_of_the_statement_is_refused(tmp_path: Path, jump: str) -> None:
    body = f"        for b in a:\n            if b: {jump}  # here\n"
    script = Script(tmp_path, f"def work(x):\n    for a in x:\n{body}        step = a  # anchor\n")
    refused = script.double(script.code("work"), ("# anchor",)).refused
    assert bool(refused) == (jump == "return x")  # those of its own loop stay inside
    last = f"            {jump}  # here\n        step = a  # anchor\n"
    outer = Script(tmp_path, f"def work(x):\n    for a in x:\n        if a:\n{last}")
    linecache.clearcache()
    refused = outer.double(outer.code("work"), ("# anchor",)).refused
    assert bool(refused) == (jump != "return x")  # its value is made twice


def test_code_that_the_file_does_not_hold_is_refused(tmp_path: Path) -> None:
    script = Script(tmp_path, "def work(x):\n    y = x + 1  # here\n    return y\n")
    code = script.code("work")
    assert script.double(code).refused == ""
    script.path.write_text("def work(x):\n    y = x + 2  # here\n    return y\n")
    linecache.clearcache()
    assert "changed" in script.double(code).refused
    script.path.write_text("def work(x):\n    y = (  # here\n")
    linecache.clearcache()
    assert script.double(code).refused
    script.path.unlink()
    linecache.clearcache()
    assert Doubling(code, 2, ()).refused


def test_modules_lambdas_and_lines_of_inner_functions_are_refused(tmp_path: Path) -> None:
    script = Script(
        tmp_path,
        """
        short = lambda x: x + 1
        def work(x):
            def inner():
                return x + 1  # here
            return inner()
        """,
    )
    assert Doubling(script.names["short"].__code__, 2, ()).refused
    assert script.double(script.code("work")).refused
    module = compile(script.path.read_text(), str(script.path), "exec", dont_inherit=True)
    assert Doubling(module, 2, ()).refused


def test_the_training_loop_is_refused_and_what_it_calls_every_step_is_not(
    tmp_path: Path,
) -> None:
    script = Script(
        tmp_path,
        """
        def run_step(after):
            y = len("step")  # here
            after()

        def train(steps, after):
            z = len('x')  # loop
            for step in range(steps):
                run_step(after)

        def main(steps, after):
            w = len('x')  # main
            train(steps, after)
        """,
    )
    step = script.double(script.code("run_step"))
    loop = Doubling(script.code("train"), line_of(script.path, "# loop"), ())
    main = Doubling(script.code("main"), line_of(script.path, "# main"), ())
    assert {each.refused for each in (step, loop, main)} == {""}

    def after() -> None:  # without a loop of its own, which would be one around the step
        step.end()
        step.begin()
        loop.begin()
        main.begin()

    script.names["main"](3, after)
    step.end()
    assert step.refused == ""
    assert step.uses() == 2
    assert "not called again" in loop.refused
    assert "not called again" in main.refused


def test_warnings_of_the_file_are_not_given_again(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        script = Script(tmp_path, "def work(x):\n    y = x is 1  # here\n    return y\n")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert script.double(script.code("work")).refused == ""
