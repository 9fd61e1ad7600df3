"""A comparison of two sides, made by hand: a loop that was vectorized."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from diagnose.records.header import Header, Reading
from diagnose.records.prove import (
    AFTER,
    AGAIN,
    BEFORE,
    GRADIENT,
    LOSS,
    NUDGED,
    Edit,
    EqualRun,
    Options,
    ProveRecord,
    SideFacts,
    Window,
)
from diagnose.records.script import Phase, Site, Suspect
from tests.support.records.parts import machine

HEADER = Header("change", "2026-07-04 12:00 UTC", "hardware", "full", machine(gpus=0))
LOSSES = (2.0, 1.5, 1.25, 1.0)
EPSILON = 2.0**-23


def run(name: str, losses: Sequence[float | None] = LOSSES, **changes: Any) -> EqualRun:
    values = {LOSS: tuple(losses), GRADIENT: (1.0,) * len(losses)}
    facts = {"samples": 8.0, "shapes": "s", "epsilon": EPSILON, "precision": "float32"}
    return EqualRun(**{"name": name, "values": values, **facts, **changes})


def runs(after: Sequence[float | None] = LOSSES, **changes: Any) -> tuple[EqualRun, ...]:
    nudged = tuple(each + EPSILON for each in LOSSES)
    return run(BEFORE), run(AFTER, after, **changes), run(AGAIN), run(NUDGED, nudged)


def windows(
    before: float, after: float, blocks: int = 9, *, starts: Sequence[int] = (0, 1)
) -> tuple[Window, ...]:
    """Blocks of three that scatter by a thousandth; every other one has the side after twice."""
    return tuple(
        Window(
            blocks * start + block,
            side,
            10,
            10 * seconds * (1 + 0.001 * ((block + place) % 3)),
            start,
        )
        for start in starts
        for block in range(blocks)
        for place, (side, seconds) in enumerate(
            [(BEFORE, before), (AFTER, after), ((BEFORE, before), (AFTER, after))[block % 2]]
        )
    )


def suspect(line: int, seconds: float, phase: Phase = "forward", **changes: Any) -> Suspect:
    site = Site("train.py", line, "forward", f"line {line}")
    return Suspect(f"{phase} {line}", site, phase, seconds, **changes)


def record(**changes: Any) -> ProveRecord:
    """Lines 5 to 8 became line 5; what is below moved up by three."""
    before = SideFacts(
        "main",
        "train.py",
        (suspect(7, 0.06, backward_seconds=0.02), suspect(12, 0.02), suspect(20, 0.02, "backward")),
        {"forward": 0.08, "backward": 0.02},
        memory_bytes=Reading(2e9),
    )
    after = SideFacts(
        "HEAD",
        "train.py",
        (suspect(5, 0.03), suspect(9, 0.02)),
        {"forward": 0.05},
        memory_bytes=Reading(1e9),
    )
    made = {
        "header": HEADER,
        "options": Options(),
        "before": before,
        "after": after,
        "runs": runs(),
        "windows": windows(0.1, 0.05),
        "edits": (Edit("train.py", 5, 8, "train.py", 5, 5),),
        "boundary": "optimizer step",
    }
    return ProveRecord(**{**made, **changes})
