"""Does the map of a step hold every fact, and leave no trace of its own looking?"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from diagnose.measure.machine.device import Device
from diagnose.measure.script.patches import Patches
from diagnose.measure.script.watch.boundary import Forwards
from diagnose.measure.script.watch.prints import fingerprint
from diagnose.measure.script.watch.repeated import find_repeated
from diagnose.measure.script.watch.suspects import _are_layers
from diagnose.measure.script.watch.where import Sources
from diagnose.measure.script.watch.work import (
    LineWork,
    StepMap,
    StepWork,
)
from tests.support.script_runs import line_of, write_script

STEP = """
import torch

def draw():
    return torch.rand(4, 8, dtype=torch.float64)  # draw

def step(model, seen):
    x = draw().float()  # convert
    table = torch.arange(4096.0).sqrt()  # table
    mixed = table.exp() + x.sum() + (x > 2).repeat(1, 512)  # mixed
    large = x.repeat(256, 32)  # large
    rows = torch.zeros(4, 8)
    for row in range(4):
        rows[row] = x[row] * 2  # loop
    seen.append(rows.tolist())  # read
    model(x).sum().backward()  # model
"""


class Run:
    """A script's step, mapped as often as wanted."""

    def __init__(self, directory: Path) -> None:
        self.path = write_script(directory, STEP)
        names: dict[str, Any] = {}
        exec(compile(self.path.read_text(), str(self.path), "exec", dont_inherit=True), names)
        self.step: Callable[[torch.nn.Module, list[Any]], None] = names["step"]
        self.model = torch.nn.Linear(8, 2)
        self.sources = Sources(directory)
        self.works: list[StepWork] = []
        self.seen: list[Any] = []

    def map_step(self) -> None:
        forwards = Forwards()
        with Patches() as patches:
            forwards.install(patches)
            step = StepMap(self.sources, Device("cpu"), forwards, patches)
            self.works.append(step.work)
            self.step(self.model, self.seen)

    def line(self, mark: str) -> LineWork:
        number = line_of(self.path, f"# {mark}")
        (found,) = (
            line for place, line in self.works[0].lines.items() if place and place.line == number
        )
        return found


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path)


def test_every_line_has_its_facts(run: Run) -> None:
    run.map_step()
    loop = run.line("loop")
    assert (loop.launches, loop.trips, loop.syncs) == (2 * 4, 4, 0)
    assert loop.moved_bytes == 4 * (8 * 4 * 2 + 2 * 8 * 4)  # products, and rows copied in place
    assert len(loop.results) == 2 * 4
    assert loop.forward_seconds > 0
    assert run.line("read").syncs == 1
    assert run.line("large").new_bytes == 4 * 256 * 8 * 32 * 4
    assert run.line("table").new_bytes == 0  # too small for the system to take back
    assert run.line("draw").makes_double
    assert run.line("convert").copy_seconds > 0
    model = run.line("model")
    assert model.backward_seconds > 0
    assert model.flops == 2 * (2 * 4 * 8 * 2)  # forward, and the gradient of the weight
    feeding = {spot.line for spot in run.works[0].feeding}
    assert line_of(run.path, "# draw") in feeding
    assert sys.getprofile() is None


def map_code(directory: Path, code: str, **names: Any) -> StepWork:
    path = write_script(directory, code)
    known: dict[str, Any] = {"torch": torch, **names}
    exec(compile(path.read_text(), str(path), "exec", dont_inherit=True), known)
    forwards = Forwards()
    with Patches() as patches:
        forwards.install(patches)
        step = StepMap(Sources(directory), Device("cpu"), forwards, patches)
        known["step"]()
    return step.work


def test_what_a_line_does_with_weights_is_known(tmp_path: Path) -> None:
    code = """
    def step():
        x = torch.rand(4, 8)
        for layer in layers: x = layer(x) + 1  # layers
        y = torch.rand(4, 8)
        heads = [layer(y) for layer in layers]  # heads
        for _ in layers: y = layers[0](y)  # recurrent
        numbers = torch.tensor([[float(i)] * 64 for i in range(64)])  # numbers
        with torch.no_grad():
            kept = [layer.weight.clone() for layer in layers]  # kept
            for layer in layers: layer.weight -= 0.1  # update
    """
    layers = torch.nn.ModuleList(torch.nn.Linear(8, 8) for _ in range(10))
    path = write_script(tmp_path, code)
    work = map_code(tmp_path, code, layers=layers)

    def line(mark: str) -> LineWork:
        number = line_of(path, f"# {mark}")
        return next(each for place, each in work.lines.items() if place and place.line == number)

    marks = ("layers", "heads", "recurrent")
    assert [_are_layers([line(mark)]) for mark in marks] == [True, False, False]
    assert line("numbers").converted_seconds > 0
    assert line("kept").converted_seconds == 0
    assert line("kept").snapshot_seconds > 0
    assert line("kept").copy_seconds == 0
    assert (line("update").updates, line("heads").updates) == (10, 0)


def test_lines_between_layers_belong_to_them(tmp_path: Path) -> None:
    code = """
    def step():
        x, rows = torch.rand(4, 8), torch.rand(10, 8)
        for layer in layers:
            x = layer(x)
            x = x.relu() * 2  # between
        for row in rows: row.relu() * 2  # rows
    """
    layers = torch.nn.ModuleList(torch.nn.Linear(8, 8) for _ in range(10))
    work = map_code(tmp_path, code, layers=layers)
    path = write_script(tmp_path, code)
    told = {}
    for mark in ("between", "rows"):
        number = line_of(path, f"# {mark}")
        lines = [each for place, each in work.lines.items() if place and place.line == number]
        told[mark] = _are_layers(lines)
    assert told == {"between": True, "rows": False}


LINEAR, LOSS = torch.nn.Linear(8, 8), torch.nn.MSELoss()
WORDS = torch.nn.Sequential(torch.nn.Embedding(9, 4), torch.nn.Linear(4, 4))


@pytest.mark.parametrize(
    ("code", "rows", "tokens"),
    [
        ("loss(model(torch.rand(4, 8)).float(), torch.rand(4, 8)).backward()", 4, 0),
        # Micro-batches of different sizes, and an evaluation between them.
        (
            "for rows in (4, 3):\n        model(torch.rand(rows, 8)).sum().backward()\n"
            "    with torch.no_grad():\n        model(torch.rand(50, 8))",
            7,
            0,
        ),
        ("with torch.no_grad():\n        model(torch.rand(5, 8))", 5, 0),
        # A discriminator is given what a generator has made, with its graph and without.
        (
            "fake = model(torch.rand(4, 8))\n"
            "    other(torch.rand(4, 8)), other(fake.detach()), other(fake)",
            4,
            0,
        ),
        ("words(torch.ones(3, 5, dtype=torch.long))", 3, 15),
        ("words(torch.ones(3, 5, dtype=torch.long).view(5, 3).int())", 5, 15),
        ("words(torch.ones(6, dtype=torch.long))", 6, 0),
        ("model(torch.ones(3, 8, dtype=torch.long).float())", 3, 0),
        ("torch.ones(8) + 1", 0, 0),
    ],
)
def test_rows_and_tokens_of_a_step(tmp_path: Path, code: str, rows: int, tokens: int) -> None:
    names = {"model": LINEAR, "other": torch.nn.Linear(8, 1), "loss": LOSS, "words": WORDS}
    work = map_code(tmp_path, f"def step():\n    {code}\n", **names)
    assert (work.rows, work.tokens) == (rows, tokens)


def test_flops_are_counted_by_the_precision_they_are_computed_in(tmp_path: Path) -> None:
    code = """
    def step():
        x = torch.rand(4, 8)
        model(x)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            model(x)
        x.double() @ torch.rand(8, 2, dtype=torch.float64)
    """
    work = map_code(tmp_path, code, model=LINEAR)
    product = 2 * 4 * 8 * 8
    assert work.flops == {"float32": product, "bfloat16": product, "float64": 2 * 4 * 8 * 2}


def test_conversions_and_work_in_lower_precision_are_counted_apart(tmp_path: Path) -> None:
    code = """
    def step():
        x = torch.rand(4, 8)
        model(x)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=ENABLED):
            model(x)
    """
    for enabled in (True, False):
        work = map_code(tmp_path, code.replace("ENABLED", str(enabled)), model=LINEAR)
        assert [seconds > 0 for seconds in work.low_seconds.values()] == [enabled, enabled]


def test_only_what_is_the_same_in_both_steps_repeats(run: Run) -> None:
    run.map_step()
    run.map_step()
    repeated = {place.line: each for place, each in find_repeated(run.works).items()}
    assert list(repeated) == [line_of(run.path, "# table"), line_of(run.path, "# mixed")]
    table, mixed = repeated.values()
    assert table.elements == 2 * 4096
    assert table.share == pytest.approx(1.0)
    assert mixed.elements == 4096  # and not the zeros, which may come of anything
    assert 0 < mixed.share < 1


class Seen(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A mode of the user's own, entered before the steps."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names[func._schema.name] += 1
        return func(*args, **(kwargs or {}))


def test_a_mode_of_the_users_does_not_see_what_looking_asks_for(run: Run) -> None:
    with Seen() as plain:
        run.step(run.model, run.seen)
    run.model.zero_grad()  # gradients that are there would be added to
    with Seen() as mapped:
        run.map_step()
    assert mapped.names == plain.names


@pytest.mark.parametrize("size", [8, 1024, 100_000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool])
def test_a_fingerprint_tells_contents_and_shapes_apart(size: int, dtype: torch.dtype) -> None:
    first = torch.arange(size).remainder(2).to(dtype)
    other = first.clone()
    other[-1] = 1 - first[-1].int()
    assert fingerprint(first) == fingerprint(first.clone())
    assert fingerprint(first) != fingerprint(other)
    assert fingerprint(first) != fingerprint(first.view(2, -1))
    both = torch.stack((first, other), dim=1)
    assert fingerprint(both[:, 0]) != fingerprint(both[:, 1])
