"""Which causes does a trace show? The rules and words of `script`, with bounds instead of trials.

On a device: what it was seen to idle for, and what the replay gives back at most. Without one, the
host does one thing after the other, so what a line takes is what can come back.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import replace

from diagnose.analyze.script.causes import judge_seen
from diagnose.analyze.script.claims import SMALLEST_SHARE, Claim, bounds
from diagnose.analyze.script.ranks import judge_ranks
from diagnose.analyze.script.speed import measure_speed
from diagnose.analyze.script.words import name_line, write_finding, write_healthy
from diagnose.analyze.units import number, percent
from diagnose.records.diagnosis import (
    SCHEMA,
    Exclusion,
    ScriptFinding,
    StepTime,
    Undecided,
)
from diagnose.records.script import Cause, Loader, RankTimes, ScriptRecord
from diagnose.records.stats import Interval, hodges_lehmann
from diagnose.records.trace import Bound, RankTrace, TraceDiagnosis, TraceRecord

# What the host does while the device idles because of a cause.
_IDLE: dict[Cause, tuple[str, ...]] = {
    "input": ("loader",),
    "launch": ("launching",),
    "host": ("python",),
    "allocation": ("allocation",),
}
_MOST_STEPS = 200
# Operators of a launch-bound model are spread over its layers: there is no loop to repair.
_FEWEST_TRIPS = 16
COMPILE = (
    "let the device be given all work at once: torch.compile(mode='reduce-overhead') or CUDA "
    "graphs, a larger batch, fused operators"
)


def diagnose(record: TraceRecord) -> TraceDiagnosis:
    rank = slowest(record)
    script = as_script(record, rank)
    mean = statistics.fmean(script.step_seconds)
    claims = list(_of_device(rank) if rank.device is not None else _of_host(rank, script))
    claims += judge_ranks(script)
    found = [each for each in claims if _is_found(each, mean)]
    findings = sorted(
        (_write(each, mean, script) for each in found), key=lambda each: -each.gain_ms
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
        each.cause: Undecided(each.cause, each.evidence)
        for each in left
        if each.cause not in excluded
    }
    busy = device_busy_share(rank)
    return TraceDiagnosis(
        schema=SCHEMA,
        sentence=_answer(record, rank, findings, mean),
        step_ms=_step_time(script.step_seconds),
        steps=len(rank.steps),
        overhead={},
        phases={name: seconds * 1e3 for name, seconds in rank.phases.items()},
        findings=tuple(findings or [write_healthy(script, measure_speed(script, mean), mean)]),
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


def _of_device(rank: RankTrace) -> Iterator[Claim]:
    idle = idle_seconds(rank)
    for each in rank.bounds:
        seen = _seen(each, rank, idle)
        likely = min(seen, each.seconds) if seen is not None else each.seconds
        suspect = next((s for s in rank.suspects if s.site == each.site), None)
        what = f"the device idles {number(seen * 1e3, 3)} ms per step meanwhile; " if seen else ""
        yield Claim(
            each.cause,
            each.site,
            Interval(likely, 0.0, each.seconds),
            verified=False,
            evidence=f"seen: {what}a replay of the trace without {each.what} ends "
            f"{number(each.seconds * 1e3, 3)} ms per step earlier, and more cannot come back",
            suspect=suspect,
        )


def _seen(bound: Bound, rank: RankTrace, idle: dict[str, float]) -> float | None:
    """What the device was seen to lose by it; None where only the replay can tell."""
    doings = _IDLE.get(bound.cause)
    return sum(idle.get(each, 0.0) for each in doings) if doings is not None else None


def _of_host(rank: RankTrace, script: ScriptRecord) -> Iterator[Claim]:
    for each in judge_seen(script):
        high = bounds(each.gain)[1]
        evidence = f"seen: {each.evidence}; more than this cannot come back"
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


def _is_found(claim: Claim, mean: float) -> bool:
    return claim.always or claim.gain.center >= SMALLEST_SHARE * mean


def _write(claim: Claim, mean: float, script: ScriptRecord) -> ScriptFinding:
    found = write_finding(claim, mean, script)
    few = claim.suspect is None or claim.suspect.trips < _FEWEST_TRIPS
    return replace(found, advice=COMPILE) if claim.cause == "launch" and few else found


def _milliseconds(gain: Interval) -> tuple[float, float]:
    low, high = bounds(gain)
    return low * 1e3, high * 1e3


def _step_time(seconds: Sequence[float]) -> StepTime:
    low, high = bounds(hodges_lehmann(seconds[:_MOST_STEPS]))
    mean, median = statistics.fmean(seconds), statistics.median(seconds)
    return StepTime(mean * 1e3, median * 1e3, low * 1e3, high * 1e3)


def _undecided(rank: RankTrace) -> Iterator[Undecided]:
    device = rank.device
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
    first = findings[0]
    return (
        f"{takes}; up to {number(first.gain_ms, 3)} ms of it ({percent(first.share)}) is "
        f"{first.cause} at {name_line(first.file, first.line)} (seen in a trace, not tried)."
    )
