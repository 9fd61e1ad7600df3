"""What does the device's own time allow a fix to give back, and what does it show by itself?

While the device works, whatever the host does is hidden behind it. So no fix gives back more than
the time in which the device has nothing to do, and the device's work that vanishes with it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from diagnose.analyze.script.bounds import judge_bounds
from diagnose.analyze.script.causes import advise_copy
from diagnose.analyze.script.claims import NOW_AND_THEN, SMALLEST_SHARE, Claim, bounds
from diagnose.analyze.units import number, percent
from diagnose.records.script import Bound, Cause, ScriptRecord, Suspect
from diagnose.records.stats import Interval

# Their repair takes no work from the device.
HOST_SIDE: tuple[Cause, ...] = ("input", "host", "sync", "allocation")
# Told by a trial of the whole step, or not about one step.
_UNBOUNDED: tuple[Cause, ...] = ("batch", "growth", "straggler", "compute")
# From here on what the host does is hidden.
BUSY = 0.9
# The device's own word on how much it works is that exact.
IDLE_ERROR = 0.2
# Of the time in which the device idles: so much while the host launches makes it launch-bound.
# The recording itself makes Python slower than the launches between it.
_LAUNCHING_SHARE = 0.3


def idle_seconds(record: ScriptRecord, mean: float) -> float | None:
    """Of the device in a plain step; None where nothing is known of it."""
    if record.device is not None:
        return max(0.0, mean - record.device.busy)
    share = record.device_busy.value
    return None if share is None else max(0.0, 1 - share) * mean


def hidden(claim: Claim, record: ScriptRecord, mean: float) -> str:
    """Why this cannot be a cause, whatever was seen of it: the device never waits for the host."""
    idle = idle_seconds(record, mean)
    if idle is None or claim.always or not mean:
        return ""
    small_copies = (
        claim.cause == "transfer"
        and record.device is not None
        and _removed(claim, record) < SMALLEST_SHARE * mean
    )
    if claim.cause not in HOST_SIDE and not small_copies:
        return ""
    busy = 1 - idle / mean
    if busy < BUSY:
        return ""
    return f"the device is busy for {percent(busy)} of a step, so this is hidden behind its work"


def within_device(claim: Claim, record: ScriptRecord, mean: float) -> Claim:
    """No more than the device idles, and what its fix takes from the device."""
    idle = idle_seconds(record, mean)
    if idle is None or claim.cause in _UNBOUNDED:
        return claim
    removed = _removed(claim, record)
    most = idle + removed
    if claim.cause == "sync" and not claim.verified:
        # Nothing was left out yet, except in a replay.
        most = min([most, *(each.seconds for each in _bounds(record) if each.cause == "sync")])
    low, high = bounds(claim.gain)
    if high <= most:
        return claim
    gain = Interval(min(claim.gain.center, most), min(low, (1 - IDLE_ERROR) * most), most)
    evidence = f"{claim.evidence}; the device is idle for {number(idle * 1e3, 3)} ms of a step"
    if removed:
        evidence += f" and works {number(removed * 1e3, 3)} ms for this"
    return replace(claim, gain=gain, evidence=evidence)


def seen_instead(claim: Claim, record: ScriptRecord, mean: float) -> Claim:
    """A trial that is lost in the noise of its windows, as what the device was seen to lose."""
    bound = next((each for each in _bounds(record) if each.cause == claim.cause), None)
    idle = idle_seconds(record, mean)
    lost_in_noise = claim.verified and claim.cause in HOST_SIDE
    if bound is None or idle is None or not lost_in_noise:
        return claim
    activity = record.device
    recorded = sum(activity.idle.values()) if activity is not None else 0.0
    # A recorded step is slower than a plain one; the shares of its idle time are those of both.
    seen = bound.seconds if claim.cause == "sync" else bound.idle
    lost = idle * min(1.0, seen / recorded) if recorded else 0.0
    if lost < SMALLEST_SHARE * mean or bounds(claim.gain)[1] < lost:
        return claim  # it is little, or the trial can tell that it is less
    gain = Interval(lost, (1 - IDLE_ERROR) * lost, idle)
    evidence = (
        f"the device idles {number(lost * 1e3, 3)} ms of a step meanwhile; windows differ too much "
        "to show what a trial gave back"
    )
    return replace(claim, gain=gain, verified=False, evidence=evidence)


def copied_instead(claim: Claim, record: ScriptRecord, mean: float) -> Claim:
    """Windows that cannot tell what a trial of copies gave back, as what the device only copies.

    Of copies that the host waits for: those that are pinned would be as long without the change.
    """
    activity = record.device
    waits = claim.suspect is not None and claim.suspect.syncs
    if claim.cause != "transfer" or not claim.verified or activity is None or not waits:
        return claim
    exposed = min(activity.exposed_copy, bounds(claim.gain)[1])
    if exposed < SMALLEST_SHARE * mean:
        return claim
    evidence = (
        f"the device does nothing but copy for {number(activity.exposed_copy * 1e3, 3)} ms of a "
        "step; windows differ too much to show what a trial gave back"
    )
    gain = Interval(exposed, exposed / 2, exposed)
    return replace(claim, gain=gain, verified=False, evidence=evidence)


def _bounds(record: ScriptRecord) -> Sequence[Bound]:
    return record.device.bounds if record.device is not None else ()


def _removed(claim: Claim, record: ScriptRecord) -> float:
    """Seconds of the device per step that a fix makes vanish, at most."""
    activity, suspect = record.device, claim.suspect
    if activity is None:
        # Nobody knows what the device does: everything but the host's own work may vanish.
        return 0.0 if claim.cause in HOST_SIDE else float("inf")
    if claim.cause == "sync":
        return 0.0
    if claim.cause == "communication":
        return activity.exposed_communication
    if claim.cause == "precision":
        return activity.kernel_seconds
    copies = activity.exposed_copy if claim.cause == "transfer" else 0.0
    if suspect is not None:
        # Two steps were mapped: what comes now and then is in both, in one or in none of them.
        rarely = suspect.phase in NOW_AND_THEN
        return copies + (suspect.seconds if rarely else suspect.device_seconds)
    # Lines of the update are torch's own; the phase was waited for, so that the device is in it.
    phase = claim.phase or ("optimizer" if claim.cause == "optimizer" else "")
    return copies + record.phases.get(phase, 0.0)


def judge_device(record: ScriptRecord, claims: Sequence[Claim], mean: float) -> Iterator[Claim]:
    """What only the device shows: causes of which no line was seen or tried."""
    activity = record.device
    if activity is None or not mean:
        return
    # Decided by a trial, or seen at a line.
    known = {
        each.cause
        for each in claims
        if each.gain.center >= each.smallest_share * mean
        or (each.verified and each.cause != "batch")
    }
    idle = idle_seconds(record, mean) or 0.0
    for claim in judge_bounds(activity.bounds, ()):
        if claim.cause == "sync" and "sync" not in known:
            most = claim.gain.center
            yield _at(replace(claim, gain=Interval(most, most / 2, most)), _reading(record))
        elif claim.cause == "transfer" and "transfer" not in known and activity.exposed_copy:
            # Behind a copy that blocks, the host may also be late; how much is not sure.
            exposed = min(activity.exposed_copy, claim.gain.center)
            gain = Interval(exposed, exposed / 2, claim.gain.center)
            copying = _copying(record)
            advice = advise_copy("transfer", copying, record)
            yield _at(replace(claim, gain=gain, advice=advice), copying)
        elif claim.cause == "communication" and activity.exposed_communication:
            exposed = activity.exposed_communication
            yield replace(
                claim,
                gain=Interval(exposed, 0.5 * exposed, max(exposed, claim.gain.center)),
                evidence=f"seen: the device exchanges for {number(exposed * 1e3, 3)} ms per step "
                "and does nothing else meanwhile",
            )
        elif claim.cause == "launch" and not known & {"launch", "batch", "host"}:
            yield from _spread(record, idle if idle > (1 - BUSY) * mean else 0.0)
    if activity.retries:
        yield from _retries(record, idle, mean)


def _at(claim: Claim, suspect: Suspect | None) -> Claim:
    """At the line that does most of it."""
    return replace(claim, suspect=suspect, site=suspect.site if suspect else claim.site)


def _reading(record: ScriptRecord) -> Suspect | None:
    reading = [each for each in record.suspects if each.syncs]
    return max(reading, key=lambda each: each.seconds, default=None)


def _copying(record: ScriptRecord) -> Suspect | None:
    copying = [each for each in record.suspects if each.copy_seconds]
    return max(copying, key=lambda each: each.copy_seconds, default=None)


def _spread(record: ScriptRecord, idle: float) -> Iterator[Claim]:
    """Launching that no loop is to blame for: the operators of a whole model."""
    activity = record.device
    assert activity is not None
    waiting = sum(activity.idle.values())
    launching, python = (activity.idle.get(each, 0.0) for each in ("launching", "python"))
    waits = waiting >= SMALLEST_SHARE * activity.seconds
    if not idle or not waits or launching < _LAUNCHING_SHARE * waiting or not activity.kernels:
        return
    # Python between the operators of a model goes with their launches: a graph has neither.
    share = (launching + python) / waiting
    gain = idle * share
    mean_kernel = activity.kernel_seconds / activity.kernels
    yield Claim(
        "launch",
        None,
        Interval(gain, (1 - IDLE_ERROR) * gain, idle),
        verified=False,
        evidence=f"{number(activity.kernels, 3)} kernels per step of "
        f"{number(mean_kernel * 1e6, 3)} µs each, and no loop of small ones; the device idles "
        f"{number(idle * 1e3, 3)} ms of a step, mostly while the host launches the next one",
    )


def _retries(record: ScriptRecord, idle: float, mean: float) -> Iterator[Claim]:
    activity = record.device
    assert activity is not None
    largest = max(record.suspects, key=lambda each: each.new_bytes, default=None)
    bound = next((each for each in activity.bounds if each.cause == "allocation"), None)
    # The device has done what was queued, so the step begins anew: that is what one costs at most.
    most = min(idle, activity.retries * mean)
    gain = min(bound.seconds, most) if bound is not None and bound.seconds else most
    yield Claim(
        "allocation",
        largest.site if largest is not None else None,
        Interval(gain, gain / 2, most),
        verified=False,
        evidence=f"the allocator ran out of memory {number(activity.retries, 2)} times per step, "
        "waited for the device, gave back what it had kept and asked for it again",
    )


def describe_work(record: ScriptRecord, mean: float) -> list[str]:
    """What bounds a step that has nothing to repair: the device's work, and whose it is."""
    activity = record.device
    if activity is None or not mean:
        return []
    told = [f"the device is busy for {percent(min(1.0, activity.busy / mean))} of a step"]
    lines = [
        f"{each.site.file}:{each.site.line} "
        f"({number((each.seconds + each.backward_seconds) * 1e3, 3)} ms"
        + _reached(each.flops, each.seconds + each.backward_seconds, record)
        + ")"
        for each in activity.lines[:3]
        if each.seconds + each.backward_seconds >= SMALLEST_SHARE * mean
    ]
    if lines:
        told.append(f"most of its time, with the backward pass: {', '.join(lines)}")
    return told


def _reached(flops: float, seconds: float, record: ScriptRecord) -> str:
    """How near a line is to what its products could take."""
    main = max(record.flops_by_precision, key=record.flops_by_precision.__getitem__, default="")
    ceiling = record.ceilings.of(main) if record.ceilings is not None else 0.0
    if not flops or not seconds or not ceiling:
        return ""
    return f", {percent(flops / seconds / ceiling)} of the {main} ceiling"
