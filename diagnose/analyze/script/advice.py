"""What should the reader do about it? One concrete sentence per cause."""

from __future__ import annotations

import math

from diagnose.analyze.script.claims import SMALLEST_SHARE, cost_of, usual_seconds
from diagnose.analyze.units import percent
from diagnose.records.script import Cause, ScriptRecord, Site, Suspect

_ADVICE: dict[Cause, str] = {
    "transfer": "convert once, where the data is prepared, and move it with non_blocking=True from "
    "pinned memory",
    "host": "move this work out of the step: do it once, less often, or in another process",
    "sync": "keep the values on the device and read them back once, after the loop or every so "
    "many steps",
    "allocation": "allocate the buffer once and write into it (out=, copy_), or keep freed memory "
    "(MALLOC_TRIM_THRESHOLD_ and MALLOC_MMAP_MAX_=0, or another allocator)",
    "precision": "use the precision that is fastest here: float32 instead of float64, and autocast "
    "only where it was seen to be faster",
    "evaluation": "evaluate less often, on fewer batches, or in another process",
    "batch": "use a larger batch (and the learning rate that belongs to it)",
    "recompute": "compute it once before the loop and reuse it",
    "growth": "keep numbers instead of tensors (.item(), .detach()), and bound what is kept",
    "communication": "exchange less often (gradient accumulation inside no_sync), or larger and "
    "fewer messages",
    "straggler": "give every rank the same work",
    "compute": "nothing to repair: a faster device, fewer operations, or torch.compile",
}


def advise(cause: Cause, site: Site, suspect: Suspect | None, record: ScriptRecord) -> str:
    if cause == "input":
        return _advise_input(record, suspect)
    if cause == "launch":
        return _advise_launch(site, suspect)
    if cause == "optimizer":
        change = next((each for each in record.changes if each.cause == "optimizer"), None)
        return f"use {change.what}" if change else "use a fused or foreach form of the update"
    if suspect is not None and suspect.phase in ("evaluation", "checkpoint", "logging"):
        return _advise_cadence(suspect, record)
    return _ADVICE[cause]


def _advise_cadence(suspect: Suspect, record: ScriptRecord) -> str:
    """How rarely it must come to cost less than what counts as a cause."""
    seen = [each for each in record.occasions if each.phase == suspect.phase]
    usual = usual_seconds(record)
    costs = [(each, cost) for each in seen if (cost := cost_of(each, usual)) is not None]
    general = {
        "evaluation": _ADVICE["evaluation"],
        "checkpoint": "save less often, or copy the weights and write them in another thread",
        "logging": "log less often, and collect what is logged",
    }[suspect.phase]
    if not costs or usual <= 0:
        return general
    occasion, cost = max(costs, key=lambda pair: pair[1].center * pair[0].times)
    every = round(occasion.steps / occasion.times)
    enough = math.ceil(cost.center / (SMALLEST_SHARE * usual))
    now = f"about every {every} steps" if every > 1 else "in every step"
    return f"{general}: now {now}; every {enough} it is at most {percent(SMALLEST_SHARE)} of one"


def _advise_input(record: ScriptRecord, suspect: Suspect | None) -> str:
    loader = record.loaders[0] if record.loaders else None
    if suspect is None or suspect.phase != "input" or loader is None:
        return "prepare the data once before training, or in a DataLoader with workers"
    if loader.workers == 0:
        return (
            "make the line cheaper or do its work once before training; else load in parallel: "
            "DataLoader(num_workers=2, persistent_workers=True, prefetch_factor=4)"
        )
    return (
        f"{loader.workers} workers are too slow: make the line cheaper, do its work once before "
        f"training, or use num_workers={2 * loader.workers} if there are cores for them"
    )


def _advise_launch(site: Site, suspect: Suspect | None) -> str:
    runs = f" instead of {suspect.trips} times" if suspect is not None else ""
    if "[" in site.code and "=" in site.code:
        return (
            f"write all elements in one operation{runs}: index with a tensor of positions, "
            "torch.where or scatter instead of the loop"
        )
    return f"do it for all elements at once{runs}: batch the operands and call the operator once"
