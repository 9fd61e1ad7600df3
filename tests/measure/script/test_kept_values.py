"""Are values handed out again where the user reads them, and only there?"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from diagnose.measure.machine.device import Device
from diagnose.measure.script.change.kept_values import KeptValues
from diagnose.measure.script.watch.where import Sources
from tests.support.script_runs import write_script

ROOT = Path(__file__).parents[3]


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[KeptValues]:
    values = KeptValues(Sources(tmp_path), Device("cpu"))
    before = dict(vars(torch.Tensor))
    yield values
    values.remove()
    assert vars(torch.Tensor) == before


def load(directory: Path, code: str) -> Callable[..., Any]:
    path = write_script(directory, code)
    names: dict[str, Any] = {"torch": torch}
    exec(compile(path.read_text(), str(path), "exec", dont_inherit=True), names)
    step: Callable[..., Any] = names["step"]
    return step


@pytest.mark.parametrize(
    ("read", "values"),
    [
        ("x.item()", (1.5, 2.5)),
        ("x.reshape(1).tolist()", ([1.5], [2.5])),
        ("float(x)", (1.5, 2.5)),
        ("int(x)", (1, 2)),
        ("[0, 1, 2][x.long()]", (1, 2)),
        ("bool(x > 2)", (False, True)),
        ("'large' if x > 2 else 'small'", ("small", "large")),
        ("f'{x:.1f}'", ("1.5", "2.5")),
    ],
)
def test_every_way_to_read_gives_the_value_of_the_step_before(
    tmp_path: Path, kept: KeptValues, read: str, values: tuple[object, object]
) -> None:
    step = load(tmp_path, f"def step(x):\n    return {read}")
    first, second = torch.tensor(1.5), torch.tensor(2.5)
    kept.record()
    assert step(first) == values[0]
    kept.remove()
    assert step(second) == values[1]
    kept.install()
    assert step(second) == values[0]
    assert kept.uses() == 1
    kept.remove()
    assert step(second) == values[1]
    assert kept.uses() == 1


def test_reads_keep_their_order_over_several_steps(tmp_path: Path, kept: KeptValues) -> None:
    step = load(
        tmp_path,
        """
        def step(x):
            pair = x[0].item() + 10 * x[1].item()
            rows = 0
            while not (x[rows] < 0):
                rows += 1
            return pair, rows
        """,
    )
    early = torch.tensor([1.0, 2.0, 3.0, -1.0])
    late = torch.tensor([7.0, -1.0, 0.0, 0.0])
    kept.record()
    assert step(early) == (21.0, 3)
    kept.remove()
    kept.install()
    assert [step(late) for _ in range(3)] == [(21.0, 3)] * 3
    assert kept.uses() == 3 * (2 + 4)
    kept.remove()
    assert step(late) == (-3.0, 1)


def test_every_window_begins_with_the_first_value(tmp_path: Path, kept: KeptValues) -> None:
    step = load(
        tmp_path,
        """
        def step(x, count):
            return [each.item() for each in x[:count]]
        """,
    )
    kept.record()
    step(torch.tensor([1.0, 2.0, 3.0]), 3)
    kept.remove()
    for count in (2, 3):  # a step that reads less may end a window in between
        kept.install()
        assert step(torch.zeros(3), count) == [1.0, 2.0, 3.0][:count]
        kept.remove()


def test_a_line_that_was_not_recorded_reads_really(tmp_path: Path, kept: KeptValues) -> None:
    step = load(
        tmp_path,
        """
        def step(x, logs):
            total = x.item()
            return (total,
                    x.item()) if logs else (total,)
        """,
    )
    kept.record()
    step(torch.tensor(1.0), logs=False)
    kept.remove()
    kept.install()
    assert step(torch.tensor(2.0), logs=True) == (1.0, 2.0)
    assert kept.uses() == 1


def test_kept_lists_can_be_written_into(tmp_path: Path, kept: KeptValues) -> None:
    step = load(tmp_path, "def step(x):\n    y = x.tolist()\n    y[0].append(9.0)\n    return y")
    kept.record()
    step(torch.ones(1, 1))
    kept.remove()
    kept.install()
    assert step(torch.zeros(1, 1)) == step(torch.zeros(1, 1)) == [[1.0, 9.0]]


def test_what_torch_reads_for_itself_stays_real(tmp_path: Path, kept: KeptValues) -> None:
    step = load(
        tmp_path,
        """
        def step(x):
            return torch.nn.utils.clip_grad_norm_([x], 1.0, error_if_nonfinite=True)
        """,
    )
    weight = torch.nn.Parameter(torch.ones(1))
    weight.grad = torch.ones(1)
    kept.record()
    step(weight)
    kept.remove()
    kept.install()
    weight.grad = torch.full((1,), float("inf"))
    with pytest.raises(RuntimeError, match="non-finite"):
        step(weight)
    assert kept.uses() == 0


def test_a_method_of_the_users_own_is_put_back(tmp_path: Path, kept: KeptValues) -> None:
    step = load(tmp_path, "def step(x):\n    return x.item()")

    def item(tensor: torch.Tensor) -> str:
        return "mine"

    torch.Tensor.item = item  # type: ignore[method-assign, assignment]
    try:
        kept.install()
        assert step(torch.ones(())) == "mine"
        kept.remove()
        assert vars(torch.Tensor)["item"] is item
    finally:
        del torch.Tensor.item


ON_ACCELERATOR = """
import sys
from pathlib import Path
import torch
from diagnose.measure.machine.device import open_device
from diagnose.measure.script.change.kept_values import KeptValues
from diagnose.measure.script.watch.where import Sources

def step(x, y):
    host = x.detach().cpu()
    host += 1
    return host.item(), x.cpu().requires_grad, float(x), x.numpy(force=True).item(), y.item()

device = open_device(None)
kept = KeptValues(Sources(Path.cwd()), device)
def tensor(value):
    return torch.tensor(value).to(device.torch).requires_grad_()
kept.record()
assert step(tensor(1.0), torch.tensor(1.0)) == (2.0, True, 1.0, 1.0, 1.0)
kept.remove()
kept.install()
assert step(tensor(5.0), torch.tensor(5.0)) == (2.0, True, 1.0, 1.0, 5.0)
assert step(tensor(5.0), torch.tensor(5.0)) == (2.0, True, 1.0, 1.0, 5.0)
kept.remove()
print(device.is_cpu, kept.uses())
"""


def test_on_an_accelerator_copies_are_kept_and_what_lies_on_the_host_is_not(
    tmp_path: Path, fakegpu_env: dict[str, str]
) -> None:
    script = write_script(tmp_path, ON_ACCELERATOR)
    paths = os.pathsep.join([str(ROOT), fakegpu_env["PYTHONPATH"]])
    child = subprocess.run(
        [sys.executable, str(script)],
        env={**os.environ, **fakegpu_env, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=False,
    )
    assert child.returncode == 0, child.stderr
    assert child.stdout.split() == ["False", "6"]
