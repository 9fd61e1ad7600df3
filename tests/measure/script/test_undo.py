"""Is nothing of ours left in the process, wherever Ctrl-C, an error or the end meets a run?

`UNDO_PLACES=100` and `UNDO_MOMENTS=400` interrupt so often, and `UNDO_SEED` elsewhere.
"""

from __future__ import annotations

import contextlib
import gc
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch
import torch.optim.optimizer as optimizers
from torch.utils.data import dataloader

from diagnose.measure.script.patches import Patches
from diagnose.measure.script.session import Session
from diagnose.records.script import Options
from tests.support.records.script import HEADER
from tests.support.script_runs import run_script, write_script

PLACES = int(os.environ.get("UNDO_PLACES", "6"))
MOMENTS = int(os.environ.get("UNDO_MOMENTS", "12"))
SEED = int(os.environ.get("UNDO_SEED", "0"))
OURS = os.sep + os.path.join("diagnose", "measure", "script") + os.sep
SHORT = Options(steps=80, seconds=20, warmup=1)
CODE = """
import torch
torch.set_num_threads(1)
model = torch.nn.Linear(16, 16)
data = torch.utils.data.TensorDataset(torch.randn(64, 16))
def batches():
    while True:
        yield from torch.utils.data.DataLoader(data, batch_size=16)
def log(loss):
    return sum(range(100_000)) + loss.item()
def train():
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for (x,) in batches():
        optimizer.zero_grad()
        loss = model(x).sum()
        loss.backward()
        optimizer.step()
        log(loss)
train()
"""
OWNERS = (
    torch,
    torch.nn.Module,
    torch.optim.Optimizer,
    torch.amp.GradScaler,
    torch.utils.data.DataLoader,
    dataloader._BaseDataLoaderIter,
    torch.autocast,
    torch.Tensor,
    os,
)


# Whatever a run has ever changed, and what was there before.
changed: dict[tuple[int, str], tuple[Callable[[], object], object]] = {}


@pytest.fixture(scope="module", autouse=True)
def once(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Whatever is only imported or made once."""
    run_script(write_script(tmp_path_factory.mktemp("once"), CODE), SHORT)


@pytest.fixture(autouse=True)
def seen_changes(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    def note(owner: Any, name: str, read: Callable[[], object]) -> None:
        changed.setdefault((id(owner), name), (read, read()))

    def seeing(kind: str, reading: Callable[[Any, str], Callable[[], object]]) -> None:
        original = getattr(Patches, kind)

        def change(patches: Patches, owner: Any, name: Any, *value: Any) -> None:
            note(owner, str(name) if value else "code", reading(owner, name))
            original(patches, owner, name, *value)

        monkeypatch.setattr(Patches, kind, change)

    seeing("set", lambda owner, name: lambda: vars(owner).get(name, "absent"))
    seeing("set_code", lambda function, _: lambda: function.__code__)
    changed.clear()
    yield
    changed.clear()


def collects() -> bool:
    """The last look of the sampling thread, which switches collection off, may not be over yet."""
    deadline = time.monotonic() + 2.0
    while not gc.isenabled() and time.monotonic() < deadline:
        time.sleep(0.01)
    return gc.isenabled()


def state() -> dict[str, Any]:
    """Everything in the process that a run changes."""
    return {
        "left": [key[1] for key, (read, before) in changed.items() if read() is not before],
        "attributes": [dict(vars(each)) for each in OWNERS],
        "codes": [torch.save.__code__, torch.optim.SGD.step.__code__],
        "hooks": len(optimizers._global_optimizer_post_hooks),
        "modes": torch._C._len_torch_dispatch_stack(),
        "functions": torch._C._len_torch_function_stack(),
        "profile": sys.getprofile(),
        "switch": sys.getswitchinterval(),
        "collects": collects(),
        "handlers": [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)],
    }


@contextlib.contextmanager
def interrupting(place: int) -> Iterator[list[int]]:
    """Ctrl-C at this line of ours, counted from the beginning; lines passed so far."""
    passed = [0]

    def trace(frame: FrameType, event: str, _: object) -> Any:
        if OURS not in frame.f_code.co_filename:
            return None
        if event == "line":
            passed[0] += 1
            if passed[0] == place:
                signal.raise_signal(signal.SIGINT)
        return trace

    sys.settrace(trace)
    try:
        yield passed
    finally:
        sys.settrace(None)


def run_until(script: Path, place: int, delay: float | None = None) -> tuple[int, bool]:
    """How many lines of ours ran, and whether Ctrl-C came out of them.

    It comes at this line of ours, or after so many seconds.
    """
    interrupted = False
    timer = threading.Timer(delay or 0, signal.raise_signal, (signal.SIGINT,))
    timer.daemon = True  # a thread that is left is taken for the script's
    with interrupting(place) if delay is None else contextlib.nullcontext([0]) as passed:
        try:
            if delay is not None:
                timer.start()
            session = Session(script, lambda: HEADER, SHORT, lambda record: None)
            interrupted = session.run([]).interrupted
            timer.cancel()
            time.sleep(0)  # one that has just been sent arrives
        except KeyboardInterrupt:
            interrupted = True
    return passed[0], interrupted


@pytest.mark.long
def test_ctrl_c_leaves_nothing_wherever_it_comes(tmp_path: Path) -> None:
    script = write_script(tmp_path, CODE)
    lines, interrupted = run_until(script, 0)
    assert not interrupted
    before = state()
    order = random.Random(SEED)
    came = 0
    for _ in range(PLACES):
        place = order.randrange(1, lines)
        came += run_until(script, place)[1]
        assert state() == before, f"after Ctrl-C in line {place} of {lines}"
    assert came  # a run that has fewer steps ends before the last of the lines


@pytest.mark.long
def test_ctrl_c_leaves_nothing_whenever_it_comes(tmp_path: Path) -> None:
    """At any moment, also inside torch and the script's own code."""
    script = write_script(tmp_path, CODE)
    began = time.perf_counter()
    run_script(script, SHORT)
    usual = time.perf_counter() - began
    before = state()
    order = random.Random(SEED)
    came = 0
    for _ in range(MOMENTS):
        delay = order.uniform(0.01, 0.9) * usual
        came += run_until(script, 0, delay)[1]
        assert state() == before, f"after Ctrl-C at {delay:.3f} s of {usual:.3f}"
    assert came  # a run that is not disturbed may end before the moment


@pytest.mark.parametrize("step", [3, 14, 29, 60])
def test_an_error_in_any_pass_leaves_nothing(tmp_path: Path, step: int) -> None:
    failing = CODE.replace("        log(loss)\n", "        log(loss)\n        fail()\n").replace(
        "def train():",
        f"steps = []\ndef fail():\n    steps.append(0)\n    if len(steps) == {step}:\n"
        "        raise ValueError('mine')\ndef train():",
    )
    script = write_script(tmp_path, failing)
    before = state()
    end, _, _ = run_script(script, SHORT)
    assert len(changed) > 5
    assert state() == before
    assert (end.error == "ValueError") != ("ValueError: mine" in end.frames)
