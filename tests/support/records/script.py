"""Records of watched scripts, made by hand: every test changes one fact in them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from diagnose.records.header import Header
from diagnose.records.script import (
    AGAIN,
    PLAIN,
    Ceilings,
    Change,
    ScriptRecord,
    Site,
    Suspect,
    Window,
)
from tests.support.records.parts import machine

LINE = Site("train.py", 12, "train", "x[i] = y[i]")
STEP = 0.1
HEADER = Header("train", "2026-07-04 12:00 UTC", "hardware", "full", machine(gpus=0))


def record(**changes: Any) -> ScriptRecord:
    plain = ScriptRecord(
        header=HEADER,
        script="train.py",
        boundary="optimizer step",
        steps=200,
        step_seconds=(STEP,) * 20,
        hook_seconds=1e-5,
        phases={"forward": 0.06, "backward": 0.03, "optimizer": 0.01},
        sampled_steps=100,
        suspects=(),
        windows=(),
        changes=(),
        occasions=(),
        loaders=(),
        double_share=0.0,
        double_site=None,
        flops=10**9,
        growth=None,
        ranks=(),
        ceilings=Ceilings(1e11, 5e10, 5e10, 1e10),
    )
    return replace(plain, **changes)


def suspect(**changes: Any) -> Suspect:
    return replace(Suspect("line", LINE, "host", seconds=0.03), **changes)


def blocks(**seconds: float) -> tuple[Window, ...]:
    """Twelve blocks of every variant, with some scatter that cancels."""
    return tuple(
        Window(block, variant.replace("_", " "), 1, each * (1 + 0.002 * (block % 3)))
        for block in range(12)
        for variant, each in {PLAIN: STEP, AGAIN: STEP, **seconds}.items()
    )


def change(cause: Any, **changes: Any) -> Change:
    return replace(Change("removed", cause, PLAIN, "it was removed", LINE), **changes)
