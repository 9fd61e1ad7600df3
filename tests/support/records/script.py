"""Records of watched scripts, made by hand: every test changes one fact in them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from diagnose.records.header import Header, Reading
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
        flops_by_precision={"float32": 1e9},
        samples=Reading(64.0),
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


def golden_record() -> ScriptRecord:
    """A script with a slow loader, a loop of small operators and something that was excluded."""
    loader = suspect(
        key="input", phase="input", seconds=0.04, site=Site("data.py", 7, "load", "json.loads(row)")
    )
    loop = suspect(
        key="loop", phase="forward", seconds=0.02, launches=900, trips=300, operator_seconds=0.018
    )
    read = suspect(key="read", seconds=0.001, site=Site("train.py", 30, "log", "print(f'{x|y}')"))
    return record(
        phases={"input": 0.04, "forward": 0.03, "backward": 0.02, "host": 0.005},
        suspects=(loader, loop, read),
        changes=(
            change("input", variant="replayed batches", site=None, what="kept batches were used"),
            change("optimizer", variant="fused", site=None, what="fused=True in SGD"),
            change("batch", variant="joined", what="4 batches as one", failed="MemoryError: full"),
        ),
        windows=tuple(
            replace(each, seconds=each.seconds * (1 + 0.01 * (each.block * 7 % 5 - 2)))
            if each.variant != PLAIN
            else each
            for each in blocks(replayed_batches=0.062, fused=0.0999)
        ),
        notes=("torch.compile is at work",),
    )
