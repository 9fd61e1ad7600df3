"""Are values, batches and conversions handed out again where they should be, and only there?"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import UserDict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from diagnose.measure.machine.device import Device
from diagnose.measure.script.change.stand_ins import LARGE_BATCH_BYTES, KeptCopies, KeptValues
from diagnose.measure.script.patches import Patches
from diagnose.measure.script.watch.origins import MOST_KEPT, MOST_KEPT_BYTES, Feed, Feeds
from diagnose.measure.script.watch.where import Sources
from tests.support.cli import TIMEOUT_SECONDS
from tests.support.script_runs import write_script

ROOT = Path(__file__).parents[3]


class Reads:
    """A step of the user's that reads values."""

    def __init__(self, directory: Path, code: str) -> None:
        path = write_script(directory, code)
        names: dict[str, Any] = {"torch": torch}
        exec(compile(path.read_text(), str(path), "exec", dont_inherit=True), names)
        self.step: Callable[..., Any] = names["step"]
        self.kept = KeptValues(Sources(directory), Device("cpu"))

    def record(self, *args: Any) -> Any:
        with Patches() as patches:
            self.kept.record(patches)
            return self.step(*args)

    def replay(self, *args: Any) -> Any:
        with Patches() as patches:
            self.kept.replay(patches)
            return self.step(*args)


@pytest.fixture(autouse=True)
def untouched() -> Iterator[None]:
    before = dict(vars(torch.Tensor))
    yield
    assert vars(torch.Tensor) == before


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
    tmp_path: Path, read: str, values: tuple[object, object]
) -> None:
    reads = Reads(tmp_path, f"def step(x):\n    return {read}")
    first, second = torch.tensor(1.5), torch.tensor(2.5)
    assert reads.record(first) == values[0]
    assert reads.step(second) == values[1]
    assert reads.replay(second) == values[0]
    assert reads.step(second) == values[1]
    assert reads.kept.uses() == 1


def test_reads_keep_their_order_and_begin_anew_in_every_window(tmp_path: Path) -> None:
    code = """
    def step(x, count):
        pair = x[0].item() + 10 * x[1].item()
        rows = 0
        while not (x[rows] < 0):
            rows += 1
        y = [each.item() for each in x[:count]]
        return pair, rows, y
    """
    reads = Reads(tmp_path, code)
    early, late = torch.tensor([1.0, 2.0, 3.0, -1.0]), torch.tensor([7.0, -1.0, 0.0, 0.0])
    assert reads.record(early, 3) == (21.0, 3, [1.0, 2.0, 3.0])
    for count in (2, 3):  # a step that reads less may end a window in between
        assert reads.replay(late, count) == (21.0, 3, [1.0, 2.0, 3.0][:count])
    assert reads.step(late, 1) == (-3.0, 1, [7.0])


def test_a_line_that_was_not_recorded_reads_really(tmp_path: Path) -> None:
    code = "def step(x, logs):\n    y = x.item()\n    return (y,\n        x.item()) if logs else y"
    reads = Reads(tmp_path, code)
    reads.record(torch.tensor(1.0), False)
    assert reads.replay(torch.tensor(2.0), True) == (1.0, 2.0)


def test_kept_lists_can_be_written_into(tmp_path: Path) -> None:
    code = "def step(x):\n    y = x.tolist()\n    y[0].append(9.0)\n    return y"
    reads = Reads(tmp_path, code)
    reads.record(torch.ones(1, 1))
    assert reads.replay(torch.zeros(1, 1)) == reads.replay(torch.zeros(1, 1)) == [[1.0, 9.0]]


def test_what_torch_reads_for_itself_stays_real(tmp_path: Path) -> None:
    call = "torch.nn.utils.clip_grad_norm_([x], 1.0, error_if_nonfinite=True)"
    reads = Reads(tmp_path, f"def step(x):\n    return {call}")
    weight = torch.nn.Parameter(torch.ones(1))
    weight.grad = torch.ones(1)
    reads.record(weight)
    weight.grad = torch.full((1,), float("inf"))
    with pytest.raises(RuntimeError, match="non-finite"):
        reads.replay(weight)
    assert reads.kept.uses() == 0


def test_below_a_method_that_the_script_put_on_top_reads_are_real_again(tmp_path: Path) -> None:
    reads = Reads(tmp_path, "def step(x):\n    return x.item()")
    reads.record(torch.tensor(1.0))
    patches = Patches()
    reads.kept.replay(patches)
    ours = torch.Tensor.item
    torch.Tensor.item = lambda tensor: ours(tensor)  # type: ignore[method-assign, assignment]
    try:
        patches.undo()
        assert reads.step(torch.tensor(2.0)) == 2.0
        assert patches.left_alone == ["torch.Tensor.item"]
    finally:
        del torch.Tensor.item


ON_ACCELERATOR = """
from pathlib import Path
import torch
from diagnose.measure.machine.device import open_device
from diagnose.measure.script.change.stand_ins import KeptValues
from diagnose.measure.script.patches import Patches
from diagnose.measure.script.watch.where import Sources

def step(x, y):
    host = x.detach().cpu()
    host += 1
    return host.item(), x.cpu().requires_grad, float(x), x.numpy(force=True).item(), y.item()

device = open_device(None)
kept = KeptValues(Sources(Path.cwd()), device)
def tensor(value):
    return torch.tensor(value).to(device.torch).requires_grad_()
with Patches() as patches:
    kept.record(patches)
    assert step(tensor(1.0), torch.tensor(1.0)) == (2.0, True, 1.0, 1.0, 1.0)
with Patches() as patches:
    kept.replay(patches)
    assert step(tensor(5.0), torch.tensor(5.0)) == (2.0, True, 1.0, 1.0, 5.0)
    assert step(tensor(5.0), torch.tensor(5.0)) == (2.0, True, 1.0, 1.0, 5.0)
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
        timeout=TIMEOUT_SECONDS,
        check=False,
    )
    assert child.returncode == 0, child.stderr
    assert child.stdout.split() == ["False", "6"]


def test_batches_are_kept_served_joined_and_converted_once() -> None:
    feeds = Feeds(Sources(ROOT), keeps=True)
    with Patches() as patches:
        feeds.watch_construction(patches)
        feeds.watch_batches(patches)
        data = torch.utils.data.TensorDataset(torch.arange(16).view(16, 1))
        loader = torch.utils.data.DataLoader(data, batch_size=2)
        list(loader)
        (feed,) = feeds.feeds.values()
        assert feed.spot is not None
        assert feed.spot.code.co_name == sys._getframe().f_code.co_name
        assert (len(feed.batches), feed.batch_size) == (MOST_KEPT, 2)
        feeds.choose([feed])
        with Patches() as replaying:
            feeds.serve(replaying, "replay")
            (served,) = next(iter(loader))
        assert any(served is kept[0] for kept in feed.batches)
        assert feed.halve()
        with Patches() as halving:
            feeds.serve(halving, "half")
            (half,) = next(iter(loader))
        assert half.shape[0] == 1
        assert next(iter(loader))[0] is not served
    copies = KeptCopies(feeds)
    for _ in range(2):
        with Patches() as converting:
            copies.replay(converting)
            assert served.float() is served.float()
            both = [served.double().t().float().contiguous() for _ in range(2)]
            assert both[0] is both[1]
            assert served.type() == "torch.LongTensor"
            assert half.clone().float() is not half.clone().float()
    assert served.float() is not served.float()


@pytest.mark.parametrize(
    ("batch", "halved"),
    [
        (torch.ones(4, 2), True),
        ({"x": torch.ones(4, 2), "name": "a", "none": None}, True),
        ([torch.ones(4, 2), torch.ones(3)], False),  # rows of two kinds
        ([torch.ones(1, 2)], False),
        ([torch.ones(4, 2), torch.tensor(1.0)], False),
        ([torch.ones(4, 2), UserDict(y=torch.ones(4))], False),  # it may hold rows of its own
    ],
)
def test_only_batches_of_nothing_but_rows_are_halved(batch: Any, halved: bool) -> None:
    feed = Feed(None, 4, None, None, 0, 0)
    feed.keep(batch)
    assert feed.halve() == halved


@pytest.mark.parametrize(("part", "kept"), [(8, MOST_KEPT), (2, 2), (1, 1)])
def test_batches_are_kept_as_far_as_the_memory_for_them_goes(part: int, kept: int) -> None:
    feed = Feed(None, 2, None, None, 0, 0)
    for _ in range(2 * MOST_KEPT):
        feed.keep(torch.empty(MOST_KEPT_BYTES // part, dtype=torch.uint8))
    assert len(feed.batches) == kept
    assert feed.serve("replay") is not None


def test_of_large_batches_only_one_conversion_is_kept() -> None:
    feeds = Feeds(Sources(Path.cwd()), keeps=True)
    feed = feeds.feeds[0] = Feed(None, 2, None, None, 0, 0)
    feed.batches = [torch.zeros(LARGE_BATCH_BYTES + 1, dtype=torch.uint8) for _ in range(2)]

    def served() -> int:
        return len({feed.serve("replay").data_ptr() for _ in range(4)})

    with Patches() as patches:
        KeptCopies(feeds).replay(patches)
        assert served() == 1
    assert served() == 2
