"""Is what a script decides about its devices left to it, and what happens to them told?"""

from __future__ import annotations

import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from diagnose.measure.gpu.nvml import Failure
from diagnose.measure.machine.device import Device
from diagnose.measure.script.watch.cards import Clocks, note_idle_devices
from diagnose.records.script import Options
from tests.support.script_runs import run_script, write_script

STEPS = 30
FAST = Options(steps=200, seconds=20.0, warmup=2)
HIDES_ITS_DEVICES = """
import os
os.environ["CUDA_VISIBLE_DEVICES"] = "hidden by the script"
import torch
torch.set_num_threads(1)
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(30):
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
"""
SKIPS_STEPS = """
import torch
torch.set_num_threads(1)
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
for step in range(30):
    loss = model(torch.ones(2, 4)).sum() * (float("inf") if step % 3 == 1 else 1.0)
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
"""


def test_no_device_is_asked_for_before_the_first_line_of_the_script(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    visible: list[str | None] = []
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "all of them")

    def noting(original: Any) -> Any:
        def ask(*args: Any, **kwargs: Any) -> Any:
            visible.append(os.environ.get("CUDA_VISIBLE_DEVICES"))
            return original(*args, **kwargs)

        return ask

    for owner, name in (
        (torch.accelerator, "is_available"),
        (torch.accelerator, "current_accelerator"),
        (torch.cuda, "is_available"),
    ):
        monkeypatch.setattr(owner, name, noting(getattr(owner, name)))
    _, record, _ = run_script(write_script(tmp_path, HIDES_ITS_DEVICES), FAST)
    assert record.steps == STEPS
    assert set(visible) == {"hidden by the script"}


def test_a_step_that_a_scaler_skips_is_a_step(tmp_path: Path) -> None:
    _, record, _ = run_script(write_script(tmp_path, SKIPS_STEPS), FAST)
    assert record.steps == STEPS


LOST = Failure("lost", "the GPU has fallen off the bus")
UNKNOWN = Failure("unavailable", "there is no driver")


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        ({"power cap": 5.0}, {"power cap": 5.0}, ""),
        ({"power cap": 5.0}, {"power cap": 5.1}, ""),  # a hundredth of the time
        ({"power cap": 5.0, "heat": 1.0}, {"power cap": 9.0, "heat": 1.0}, "(power cap for 4.0 s)"),
        ({"power cap": 5.0}, LOST, "fallen off the bus"),
        (UNKNOWN, LOST, ""),  # it was never there
        (UNKNOWN, {"power cap": 5.0}, ""),
    ],
)
def test_a_card_that_is_held_back_or_lost_is_told(
    before: Any, after: Any, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = iter((before, after))
    moments = iter((100.0, 110.0))
    monkeypatch.setattr(Clocks, "_read", lambda self: next(answers))
    monkeypatch.setattr(time, "monotonic", lambda: next(moments, 110.0))
    clocks = Clocks(Device("cpu"))
    note = clocks.note()
    assert (told in note) if told else not note


@pytest.mark.parametrize(
    ("used", "local_ranks", "told"),
    [
        ((0,), "1", "torch sees 4 devices and this job uses 1: the others are idle"),
        ((1, 2), "1", "and this job uses 2"),
        ((0,), "4", ""),  # the others are used by other processes
        ((0, 1, 2, 3), "1", ""),
    ],
)
def test_cards_that_nobody_uses_are_named(
    used: tuple[int, ...], local_ranks: str, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    four = SimpleNamespace(device_count=lambda: 4, max_memory_allocated=lambda card: card in used)
    monkeypatch.setattr(torch, "get_device_module", lambda kind: four)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", local_ranks)
    device: Any = SimpleNamespace(is_cpu=False, kind="cuda")
    note = note_idle_devices(device)
    assert (told in note) if told else not note
