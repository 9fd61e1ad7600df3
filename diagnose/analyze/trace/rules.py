"""Which causes does a trace show? The rules and words of `script`, with bounds instead of trials.

On a device: what it was seen to idle for, and what the replay gives back at most. Without one, the
host does one thing after the other, so what a line takes is what can come back.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import replace

from diagnose.analyze.script.bounds import judge_bounds
from diagnose.analyze.script.causes import judge_seen
from diagnose.analyze.script.claims import SMALLEST_SHARE, Claim, bounds
from diagnose.analyze.script.ranks import judge_ranks
from diagnose.analyze.script.speed import measure_speed
from diagnose.analyze.script.words import name_line, write_finding, write_healthy
from diagnose.analyze.units import number, percent, scaled
from diagnose.records.diagnosis import (
    SCHEMA,
    Exclusion,
    ScriptFinding,
    StepTime,
    Undecided,
)
from diagnose.records.script import Loader, RankTimes, ScriptRecord
from diagnose.records.stats import Interval, hodges_lehmann
from diagnose.records.trace import UNRECORDED, RankTrace, TraceDiagnosis, TraceRecord

_MOST_STEPS = 200
# Reads and writes of one fused update, in those of an operator that changes one tensor in place.
_FUSED_PASSES = 3
# Of the peak, per step: a thousand steps would double it.
_KEPT_SHARE = 0.001
# Of a step, from which on a library's function is named.
_TOLD_SHARE = 0.02


def diagnose(record: TraceRecord) -> TraceDiagnosis:
    rank = slowest(record)
    script = as_script(record, rank)
    mean = statistics.fmean(script.step_seconds)
    claims = list(
        judge_bounds(rank.bounds, rank.suspects)
        if rank.device is not None
        else _of_host(rank, script)
    )
    claims = [_inside(each, rank, mean) for each in claims] + [
        *_among_ranks(record, script),
        *_kept(rank),
    ]
    found = [each for each in claims if _is_found(each, mean)]
    findings = sorted(
        (write_finding(each, mean, script) for each in found), key=lambda each: -each.gain_ms
    )
    named = {each.cause for each in findings}
    left = sorted((e for e in claims if e.cause not in named), key=lambda each: each.gain.center)
    least = SMALLEST_SHARE * mean
    excluded = {
        each.cause: Exclusion(each.cause, _milliseconds(each.gain), each.evidence)
        for each in left
        if bounds(each.gain)[1] < least
    }
    open_ones = {
        each.cause: Undecided(
            each.cause, f"at most {number(bounds(each.gain)[1] * 1e3, 3)} ms; {each.evidence}"
        )
        for each in left
        if each.cause not in excluded
    }
    busy = device_busy_share(rank)
    return TraceDiagnosis(
        schema=SCHEMA,
        sentence=_answer(record, rank, findings, mean),
        step_ms=_step_time(script.step_seconds),
        steps=rank.steps_found,
        overhead={},
        phases={name: seconds * 1e3 for name, seconds in rank.phases.items()},
        findings=tuple(findings or [_healthy(rank, script, mean)]),
        excluded=tuple(excluded.values()),
        cannot_tell=(*open_ones.values(), *_undecided(rank)),
        notes=(*record.notes, *rank.notes),
        device_busy_share=busy,
        step_busy_share=step_busy_share(rank),
    )


def slowest(record: TraceRecord) -> RankTrace:
    """The rank that the others wait for."""
    return max(record.ranks, key=lambda each: each.own_seconds)


def device_busy_share(rank: RankTrace) -> float | None:
    device = rank.device
    return device.busy / device.seconds if device is not None and device.seconds else None


def step_busy_share(rank: RankTrace) -> float | None:
    if rank.device is None:
        return None
    return sum(each.busy for each in rank.steps) / sum(each.seconds for each in rank.steps)


def idle_seconds(rank: RankTrace) -> dict[str, float]:
    """Of the device, per step, by what the host did meanwhile."""
    sums: dict[str, float] = {}
    for step in rank.steps:
        for doing, seconds in (step.idle or {}).items():
            sums[doing] = sums.get(doing, 0.0) + seconds / len(rank.steps)
    return dict(sorted(sums.items(), key=lambda item: -item[1]))


def as_script(record: TraceRecord, rank: RankTrace) -> ScriptRecord:
    """What `script` would have seen of it: the record that its rules and words know."""
    site = next((each.site for each in rank.suspects if each.phase == "input"), None)
    workers = rank.loader_workers
    return ScriptRecord(
        header=record.header,
        script=record.script,
        boundary=rank.boundary,
        steps=len(rank.steps),
        step_seconds=tuple(each.seconds for each in rank.steps),
        hook_seconds=0.0,
        phases=rank.phases,
        sampled_steps=len(rank.steps),
        suspects=rank.suspects,
        windows=(),
        changes=(),
        occasions=(),
        loaders=(Loader(site, workers, None),) if workers is not None else (),
        double_share=0.0,
        double_site=None,
        flops=0,
        growth=rank.growth,
        ranks=tuple(
            RankTimes(
                each.rank,
                (step := statistics.fmean(one.seconds for one in each.steps)),
                max(0.0, step - each.own_seconds),
                each.suspects,
                (),
            )
            for each in record.ranks
        ),
        ceilings=None,
    )


def _of_host(rank: RankTrace, script: ScriptRecord) -> Iterator[Claim]:
    seen = list(judge_seen(script))
    if all(each.cause != "optimizer" for each in seen):
        yield from _update(rank)
    for each in seen:
        suspect, high = each.suspect, each.gain.center
        if suspect is not None:
            high = max(high, suspect.seconds + suspect.backward_seconds)
        evidence = f"seen: {each.evidence}"
        yield replace(each, gain=Interval(each.gain.center, 0.0, high), evidence=evidence)
    if rank.double_share:
        computing = sum(rank.phases.get(name, 0.0) for name in ("forward", "backward", "optimizer"))
        double = rank.double_share * computing
        yield Claim(
            "precision",
            rank.double_site,
            Interval(double / 2, 0.0, double),
            verified=False,
            evidence=f"seen: operators in float64 take {number(double * 1e3, 3)} ms per step; "
            "float32 moves half the bytes",
        )


def _among_ranks(record: TraceRecord, script: ScriptRecord) -> Iterator[Claim]:
    """Without what it does more, a straggler is as fast as the rank that is the next slowest."""
    own = sorted((each.own_seconds for each in record.ranks), reverse=True)
    for each in judge_ranks(script):
        if each.cause == "straggler":
            high = max(each.gain.center, own[0] - own[1])
            each = replace(each, gain=Interval(each.gain.center, 0.0, high))
        yield replace(each, evidence=f"seen: {each.evidence}")


def _healthy(rank: RankTrace, script: ScriptRecord, mean: float) -> ScriptFinding:
    found = write_healthy(script, measure_speed(script, mean), mean)
    if not rank.kernels:
        return found
    most = rank.kernels[0]
    seconds = most.seconds + most.backward_seconds
    where = f" at {name_line(most.site.file, most.site.line)}" if most.site is not None else ""
    return replace(
        found,
        evidence=f"no cause would save more than {percent(SMALLEST_SHARE)} of a step; the device "
        f"computes {most.operator}{where} for {number(seconds * 1e3, 3)} ms of it, more than "
        "anything else",
    )


def _update(rank: RankTrace) -> Iterator[Claim]:
    """Each operator of an update is a pass over all weights; a fused one does with about three."""
    passes = len(rank.update_operators)
    suspects = [each for each in rank.suspects if each.phase == "optimizer"]
    if (
        not suspects
        or passes <= _FUSED_PASSES
        or any("_fused_" in e for e in rank.update_operators)
    ):
        return
    seconds = sum(each.seconds for each in suspects)
    yield Claim(
        "optimizer",
        suspects[0].site,
        Interval(seconds * (1 - _FUSED_PASSES / passes), 0.0, seconds),
        verified=False,
        evidence=f"seen: the update takes {number(seconds * 1e3, 3)} ms per step, in {passes} "
        f"kinds of operators; a fused one moves as many bytes as about {_FUSED_PASSES} of them",
        suspect=suspects[0],
    )


def _kept(rank: RankTrace) -> Iterator[Claim]:
    """Memory that grows costs nothing in a trace of a few steps, and ends a long run."""
    growth, memory = rank.growth, rank.memory
    if growth is None or not growth.bytes_per_step or memory is None or not memory.peak_bytes:
        return
    share = growth.bytes_per_step / memory.peak_bytes
    if share >= _KEPT_SHARE:
        yield Claim(
            "growth",
            growth.site,
            Interval(0.0, 0.0, 0.0),
            verified=False,
            evidence=f"seen: {growth.what} grows by {scaled(growth.bytes_per_step, 'B')} per step, "
            f"{percent(share)} of the peak",
            always=True,
        )


def _inside(claim: Claim, rank: RankTrace, mean: float) -> Claim:
    """With the library's function that the line waits for."""
    found = rank.inside.get(claim.suspect.key) if claim.suspect is not None else None
    if found is None or claim.cause not in ("host", "input") or found.seconds < _TOLD_SHARE * mean:
        return claim
    told = f"; {number(found.seconds * 1e3, 3)} ms of it inside {found.function}"
    return replace(claim, evidence=claim.evidence + told)


def _is_found(claim: Claim, mean: float) -> bool:
    return claim.always or claim.gain.center >= SMALLEST_SHARE * mean


def _milliseconds(gain: Interval) -> tuple[float, float]:
    low, high = bounds(gain)
    return low * 1e3, high * 1e3


def _step_time(seconds: Sequence[float]) -> StepTime:
    low, high = bounds(hodges_lehmann(seconds[:_MOST_STEPS]))
    mean, median = statistics.fmean(seconds), statistics.median(seconds)
    return StepTime(mean * 1e3, median * 1e3, low * 1e3, high * 1e3)


def _undecided(rank: RankTrace) -> Iterator[Undecided]:
    device = rank.device
    unrecorded = idle_seconds(rank).get(UNRECORDED, 0.0) / statistics.fmean(
        e.seconds for e in rank.steps
    )
    if unrecorded >= SMALLEST_SHARE:
        yield Undecided(
            "compute",
            f"the device idles {percent(unrecorded)} of a step while nothing of the host was "
            "recorded: profile with ProfilerActivity.CPU and with_stack=True",
        )
    if device is None or not device.kernel_seconds:
        return
    share = device.plain_product_seconds / device.kernel_seconds
    if share >= SMALLEST_SHARE:
        yield Undecided(
            "precision",
            f"matrix products without tensor cores take {percent(share)} of the kernels' time; "
            "autocast or TF32 may shorten them, and a trace cannot say by how much",
        )


def _answer(
    record: TraceRecord, rank: RankTrace, findings: Sequence[ScriptFinding], mean: float
) -> str:
    takes = f"A step of {record.script} takes {number(mean * 1e3)} ms on average"
    busy = step_busy_share(rank)
    if busy is not None:
        takes += f", and the device is busy for {percent(busy)} of it"
    if not findings:
        least = percent(SMALLEST_SHARE)
        return f"{takes}; no cause that a trace shows would save more than {least}."
    first, high = findings[0], findings[0].gain_ci[1]
    where = name_line(first.file.rsplit("/", 1)[-1], first.line)
    if not high:
        return f"{takes}; {first.cause} at {where} costs nothing yet: {first.evidence}."
    return (
        f"{takes}; up to {number(high, 3)} ms of it ({percent(high / mean / 1e3)}) is "
        f"{first.cause} at {where} (a bound: seen in a trace, not tried)."
    )
