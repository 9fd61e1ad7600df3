"""Is nothing of ours left in the process, wherever Ctrl-C, an error or the end meets a run?

`UNDO_PLACES=500` interrupts in as many places as the long form of this test wants.
"""

from __future__ import annotations

import contextlib
import gc
import os
import random
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch
import torch.optim.optimizer as optimizers
from torch.utils.data import dataloader

from diagnose.measure.script.session import Session
from diagnose.records.script import Options
from tests.support.records.script import HEADER
from tests.support.script_runs import run_script, write_script

PLACES = int(os.environ.get("UNDO_PLACES", "8"))
OURS = os.sep + os.path.join("diagnose", "measure", "script") + os.sep
SHORT = Options(steps=30, seconds=0.05, warmup=1)
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


def state() -> dict[str, Any]:
    """Everything in the process that a run changes."""
    return {
        "attributes": [dict(vars(each)) for each in OWNERS],
        "codes": [torch.save.__code__, torch.optim.SGD.step.__code__],
        "hooks": len(optimizers._global_optimizer_post_hooks),
        "modes": torch._C._len_torch_dispatch_stack(),
        "functions": torch._C._len_torch_function_stack(),
        "profile": sys.getprofile(),
        "switch": sys.getswitchinterval(),
        "collects": gc.isenabled(),
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


def run_until(script: Path, place: int) -> tuple[int, bool]:
    """How many lines of ours ran, and whether Ctrl-C came out of them."""
    interrupted = False
    with interrupting(place) as passed:
        try:
            session = Session(script, lambda: HEADER, SHORT, lambda record: None)
            interrupted = session.run([]).interrupted
        except KeyboardInterrupt:
            interrupted = True
    return passed[0], interrupted


def test_ctrl_c_leaves_nothing_wherever_it_comes(tmp_path: Path) -> None:
    script = write_script(tmp_path, CODE)
    run_script(script, SHORT)  # whatever is only imported or made once
    lines, interrupted = run_until(script, 0)
    assert not interrupted
    before = state()
    order = random.Random(0)
    came = 0
    for _ in range(PLACES):
        place = order.randrange(1, lines)
        came += run_until(script, place)[1]
        assert state() == before, f"after Ctrl-C in line {place} of {lines}"
    assert came > PLACES / 2  # a run that has fewer steps ends before the last of the lines


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
    assert state() == before
    assert (end.error == "ValueError") != ("ValueError: mine" in end.frames)
