from __future__ import annotations

import ast
import gc
import os
import signal
import sys
from collections.abc import Generator, Iterator
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from tests.support.fakegpu.plugin import fakegpu_env as fakegpu_env
from tests.support.nvml_stub import build_stub, find_compiler
from tests.support.turns import Turns

# Several files are tested at a time, and models are tiny: a second thread would only wait for the
# other file's, and OpenMP waits busily. Sums have one order, too, and runs can be compared bit by
# bit. Set before torch is imported; child processes inherit it.
os.environ["OMP_NUM_THREADS"] = "1"
# Hundreds of commands are started: none should compile what the one before has compiled.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
# Children inherit what is ignored, and a shell lets `make test &` ignore Ctrl-C, nohup the loss of
# the terminal: a test that ends its child by a signal would wait for ever. A handler that does
# nothing is not inherited.
for _kind in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
    if signal.getsignal(_kind) is signal.SIG_IGN:
        _is_interrupt = _kind is signal.SIGINT
        signal.signal(_kind, signal.default_int_handler if _is_interrupt else lambda *_: None)
# What these rooms' tests take is little and even: they fill the gaps when the long ones run out.
SHORT_ROOMS = ("analyze", "records", "render")
# For a test with its fixtures, whatever it waits for; the longest takes a third of it.
LIMIT_SECONDS = 900
TURNS = Turns()
ROOT = Path(__file__).parents[1]


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--quick"):
        sys.addaudithook(_skip_python_processes)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """First what needs the machine, one after the other: before the first of these, and after the
    last, processes wait for each other. Long files next, or one process is left with them.
    """
    items.sort(key=lambda item: (not is_alone(item), item.path.parent.name in SHORT_ROOMS))
    if config.getoption("--quick"):
        built = pytest.mark.skip(reason="compiles the fake accelerator, which `make test` does")
        for item in items:
            if "fakegpu_env" in getattr(item, "fixturenames", ()):
                item.add_marker(built)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """One process takes all tests that run alone; of the others each takes a whole file."""
    from xdist.scheduler import LoadFileScheduling

    def share_of(test_id: str) -> str:
        file, _, test = test_id.partition("::")
        return "alone" if test.partition("[")[0] in find_alone(file) else file

    if config.getoption("dist") != "loadfile":
        return None
    scheduling = LoadFileScheduling(config, log)
    scheduling._split_scope = share_of
    return scheduling


@cache
def find_alone(file: str) -> frozenset[str]:
    """Whoever shares out the tests knows their names only."""
    functions = ast.parse((ROOT / file).read_text(encoding="utf-8")).body
    return frozenset(
        each.name
        for each in functions
        if isinstance(each, ast.FunctionDef)
        and any(ast.unparse(mark) == "pytest.mark.alone" for mark in each.decorator_list)
    )


def is_alone(item: pytest.Item | None) -> bool:
    return item is not None and item.get_closest_marker("alone") is not None


def _skip_python_processes(event: str, arguments: tuple[Any, ...]) -> None:
    """A new Python loads torch for seconds; a test that starts one is skipped at that moment."""
    # pytest's own workers start before there is a test.
    if event == "subprocess.Popen" and "PYTEST_CURRENT_TEST" in os.environ:
        # Also behind another program, as in `ip netns exec NAME python`.
        words = [arguments[0], *arguments[1]]
        if not any("python" in os.path.basename(str(word)) for word in words):
            return
        pytest.skip("starts a Python process, which `make test` does")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(
    item: pytest.Item, nextitem: pytest.Item | None
) -> Generator[None, object, object]:
    """Around the fixtures too: those of a module run whole commands."""
    with TURNS.take(alone=is_alone(item), so_is_next=is_alone(nextitem)):
        usual = signal.signal(signal.SIGALRM, _give_up)
        signal.alarm(LIMIT_SECONDS)
        try:
            return (yield)
        finally:
            signal.alarm(0)
            signal.signal(signal.SIGALRM, usual)


def _give_up(number: int, frame: FrameType | None) -> None:
    raise TimeoutError(f"the test took over {LIMIT_SECONDS} s")


@pytest.fixture(scope="module")
def small_heap() -> Iterator[None]:
    """For what collects garbage at every turn: not through all that was imported before."""
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(scope="session")
def nvml_stub(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment in which a new process finds the NVML stand-in instead of the driver."""
    compiler = find_compiler()
    if compiler is None:
        pytest.skip("no C compiler (cc, gcc or clang) to build the NVML stub with")
    return build_stub(compiler, tmp_path_factory.mktemp("nvml_stub"))
