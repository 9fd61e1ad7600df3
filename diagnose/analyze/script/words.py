"""How is a claim put into words? One sentence that answers, one of evidence, one of advice."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from diagnose.analyze.script.causes import file_of
from diagnose.analyze.script.claims import SMALLEST_SHARE, Claim, bounds, cost_of, usual_seconds
from diagnose.analyze.script.device import describe_work
from diagnose.analyze.script.edits import find_edit
from diagnose.analyze.script.speed import write_bound, write_speed, write_worth
from diagnose.analyze.units import number, percent
from diagnose.records.diagnosis import ScriptFinding, Speed, Undecided, Worth
from diagnose.records.script import FEWEST_TRIPS, Cause, ScriptRecord, Site, Suspect

WHOLE_STEP = "whole step"

_ADVICE: dict[Cause, str] = {
    "transfer": "convert once, where the data is prepared, and move it with non_blocking=True from "
    "pinned memory",
    "host": "move this work out of the step: do it once, less often, or in another process",
    "sync": "keep the values on the device and read them back once, after the loop or every so "
    "many steps",
    "allocation": "allocate the buffer once and write into it (out=, copy_), or keep freed memory "
    "(MALLOC_TRIM_THRESHOLD_ and MALLOC_MMAP_MAX_=0, or another allocator)",
    "evaluation": "evaluate less often, on fewer batches, or in another process",
    "batch": "use a larger batch (and the learning rate that belongs to it)",
    "recompute": "compute it once before the loop and reuse it",
    "communication": "exchange less often (gradient accumulation inside no_sync), or larger and "
    "fewer messages",
    "straggler": "give every rank the same share of the work, or take this work out of the step",
    "compute": "nothing to repair: a faster device, fewer operations, or torch.compile",
}
# Where these mean something else than on the CPU.
_ON_DEVICE: dict[Cause, str] = {
    "allocation": "let segments grow instead of being given back (PYTORCH_ALLOC_CONF="
    "expandable_segments:True), pad batches to few sizes, or use a smaller batch",
    "batch": "use a larger batch (and the learning rate that belongs to it); without one, "
    "torch.compile(mode='reduce-overhead') or CUDA graphs launch the same work at once: "
    "`diagnose prove {script} --with compile`",
}
_NOW_AND_THEN = {
    "evaluation": _ADVICE["evaluation"],
    "checkpoint": "save less often, or copy the weights and write them in another thread",
    "logging": "log less often, and collect what is logged",
}


def write_answer(
    record: ScriptRecord,
    findings: Sequence[ScriptFinding],
    undecided: Sequence[Undecided],
    speed: Speed | None,
    worth: Sequence[Worth],
) -> str:
    if not findings or speed is None:
        return f"No diagnosis: {record.missing or 'no step was timed'}."
    # Evaluation every so many steps, and growth, are in the mean but not in the median.
    mean = statistics.fmean(record.step_seconds) * 1e3
    takes = f"A step of {record.script} takes {number(mean)} ms on average"
    takes += write_speed(speed, len(record.ranks))
    first = findings[0]
    if first.cause == "compute":
        causes = dict.fromkeys(each.cause for each in undecided if each.cause != "compute")
        ending = f"; undecided: {', '.join(causes)}" if causes else ""
        least = percent(SMALLEST_SHARE)
        return f"{takes}; no cause that could be tested would save more than {least}{ending}."
    where = name_line(first.file, first.line)
    if not first.gain_ms:
        return f"{takes}; {first.cause} at {where} costs nothing yet: {first.evidence}."
    how = "tried" if first.verified else "estimated"
    return (
        f"{takes}; {number(first.gain_ms, 3)} ms of it ({percent(first.share)}) is {first.cause} "
        f"at {where} ({how}).{write_worth(worth)}"
    )


def name_line(file: str, line: int) -> str:
    return f"{file}:{line}" if file and line > 0 else WHOLE_STEP


def write_finding(claim: Claim, mean: float, record: ScriptRecord) -> ScriptFinding:
    gain, evidence = claim.gain, claim.evidence
    if gain.center > mean > 0:
        # As wide as it was: an interval without a width would claim to be certain.
        gain = gain.map(lambda each: min(mean, each * mean / claim.gain.center))
        promised = number(claim.gain.center * 1e3, 3)
        evidence += f"; this promised {promised} ms, and no fix gives back more than the step"
    low, high = bounds(gain)
    high = min(high, mean) if mean else high
    site = _known(claim.site)
    advice = claim.advice or advise(claim.cause, site, claim.suspect, record)
    return ScriptFinding(
        cause=claim.cause,
        file=site.file,
        line=site.line,
        function=site.function,
        gain_ms=gain.center * 1e3,
        gain_ci=(low * 1e3, high * 1e3),
        share=gain.center / mean if mean else 0.0,
        verified=claim.verified,
        evidence=evidence,
        framework=site.framework or (claim.suspect.site.framework if claim.suspect else ""),
        advice=advice,
        code=site.code,
        edit=find_edit(claim.cause, site, advice, record),
    )


def _known(site: Site | None) -> Site:
    """Without a file and a line it is the whole step, and nothing in particular."""
    return site if site is not None and site.file and site.line > 0 else Site("", 0, "")


def write_undecided(claim: Claim, noise_seconds: float | None) -> str:
    """Why this is neither a cause nor excluded; the noise is given where that is the reason."""
    low, high = (number(each * 1e3, 3) for each in bounds(claim.gain))
    if noise_seconds is not None:
        return (
            f"it would save {number(claim.gain.center * 1e3, 3)} ms per step, but unchanged steps "
            f"differ by {number(noise_seconds * 1e3, 3)} ms; {claim.evidence}"
        )
    return (
        f"it would save between {low} and {high} ms per step; {claim.evidence}; a longer run "
        "(--seconds) narrows this"
    )


def write_healthy(record: ScriptRecord, speed: Speed, mean: float) -> ScriptFinding:
    """Where nothing is to be repaired: how fast it is, and where most of its time passes."""
    forward = [each for each in record.suspects if each.phase == "forward"]
    busiest = max(forward, key=lambda each: each.seconds + each.backward_seconds, default=None)
    site = _known(busiest.site if busiest is not None else None)
    evidence = [f"no cause would save more than {percent(SMALLEST_SHARE)} of a step"]
    evidence += write_bound(record, speed, mean)
    work = describe_work(record, mean)
    evidence += work
    if busiest is not None and not work:
        takes = (busiest.seconds + busiest.backward_seconds) * 1e3
        evidence.append(
            f"most time passes at {name_line(site.file, site.line)}, {number(takes, 3)} ms per "
            "step with its backward pass"
        )
    return ScriptFinding(
        cause="compute",
        file=site.file,
        line=site.line,
        function=site.function,
        gain_ms=0.0,
        gain_ci=(0.0, 0.0),
        share=0.0,
        verified=False,
        evidence="; ".join(evidence),
        advice=_ADVICE["compute"],
    )


def advise(cause: Cause, site: Site, suspect: Suspect | None, record: ScriptRecord) -> str:
    if cause == "input":
        return _advise_input(record, suspect)
    if cause == "launch":
        return _advise_launch(site, suspect, record.script)
    if cause == "optimizer":
        change = next((each for each in record.changes if each.cause == "optimizer"), None)
        return f"use {change.what}" if change else "use a fused or foreach form of the update"
    if suspect is not None and suspect.phase in _NOW_AND_THEN:
        return _advise_cadence(suspect, record)
    if cause in ("allocation", "batch") and record.device is not None:
        return _ON_DEVICE[cause].format(script=record.script)
    own = file_of(cause)
    return own.ADVICE if own else _ADVICE[cause]


def _advise_cadence(suspect: Suspect, record: ScriptRecord) -> str:
    """How rarely it must come to cost less than what counts as a cause."""
    seen = [each for each in record.occasions if each.phase == suspect.phase]
    usual = usual_seconds(record)
    costs = [(each, cost) for each in seen if (cost := cost_of(each, usual)) is not None]
    general = _NOW_AND_THEN[suspect.phase]
    if not costs or usual <= 0:
        return general
    occasion, cost = max(costs, key=lambda pair: pair[1].center * pair[0].times)
    every = round(occasion.steps / occasion.times)
    enough = math.ceil(cost.center / (SMALLEST_SHARE * usual))
    if enough <= every:
        return general
    now = f"about every {every} steps" if every > 1 else "in every step"
    return f"{general}: now {now}; every {enough} steps it costs at most {percent(SMALLEST_SHARE)}"


def _advise_input(record: ScriptRecord, suspect: Suspect | None) -> str:
    loader = record.loaders[0] if record.loaders else None
    if suspect is None or suspect.phase != "input" or loader is None:
        return "prepare the data once before training, or in a DataLoader with workers"
    cheaper = "make the line cheaper or do its work once before training"
    usual = usual_seconds(record)
    rest = usual - suspect.seconds
    making = suspect.seconds if loader.workers == 0 else loader.batch_seconds
    if making <= 0 or rest <= 0:
        return f"{cheaper}; or use num_workers={2 * max(1, loader.workers)} if there are cores"
    takes = f"a batch takes {number(making * 1e3, 3)} ms to make, the rest of a step "
    takes += f"{number(rest * 1e3, 3)} ms"
    enough = math.ceil(making / rest)
    if loader.cores and enough > loader.cores - 1:
        most = max(1, loader.cores - 1)
        if loader.workers >= most:
            return f"{cheaper}: {takes}, and {loader.cores} cores cannot run enough workers"
        return f"{cheaper}; num_workers={most} hides a part of it: {takes}"
    if loader.workers >= enough:
        return f"{cheaper}; {loader.workers} workers should keep up: {takes}; are others busy?"
    return f"{cheaper}; else num_workers={enough} keeps up with the step: {takes}"


def _advise_launch(site: Site, suspect: Suspect | None, script: str) -> str:
    if suspect is None or suspect.trips < FEWEST_TRIPS:
        # Spread over the layers of a model: there is no loop to repair.
        return (
            "give the device all its work at once: torch.compile(mode='reduce-overhead') or CUDA "
            f"graphs (`diagnose prove {script} --with compile`), a larger batch, fused operators"
        )
    runs = f" instead of {suspect.trips} times"
    if "[" in site.code and "=" in site.code:
        return (
            f"write all elements in one operation{runs}: index with a tensor of positions, "
            "torch.where or scatter instead of the loop"
        )
    return f"do it for all elements at once{runs}: batch the operands and call the operator once"
