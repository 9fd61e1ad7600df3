"""Which causes does a run of somebody's script prove, exclude or leave open?

Every cause is judged by what removing it gives back, per step: from windows in which it was
removed where there are such windows, else from what its lines were seen to take. No rule knows
a name of the script's.
"""

from __future__ import annotations

import functools
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import replace

from diagnose.analyze.script.causes import judge_seen
from diagnose.analyze.script.claims import (
    NOW_AND_THEN,
    SMALLEST_SHARE,
    Claim,
    add,
    bounds,
    cost_of,
    gain_of,
    noise_share,
    usual_seconds,
)
from diagnose.analyze.script.device import (
    copied_instead,
    hidden,
    judge_device,
    seen_instead,
    within_device,
)
from diagnose.analyze.script.garbage import with_garbage
from diagnose.analyze.script.options import find_options
from diagnose.analyze.script.ranks import judge_ranks
from diagnose.analyze.script.slow import write_slow
from diagnose.analyze.script.speed import (
    describe_environment,
    find_worth,
    measure_speed,
)
from diagnose.analyze.script.sums import add_up, expect
from diagnose.analyze.script.words import (
    write_answer,
    write_finding,
    write_healthy,
    write_undecided,
)
from diagnose.analyze.units import number, scale
from diagnose.records.diagnosis import (
    SCHEMA,
    Diagnosis,
    Exclusion,
    ScriptFinding,
    Speed,
    StepTime,
    Undecided,
)
from diagnose.records.script import (
    ALL,
    FROZEN,
    GARBAGE,
    NO_ANOMALIES,
    STARTS,
    Change,
    ScriptRecord,
    Suspect,
    replayed_name,
)
from diagnose.records.stats import Interval, hodges_lehmann

# A larger batch changes the training, so it is only named where half of a step is cost that
# does not grow with the batch.
FIXED_SHARE = 0.5
# Times the batch: a gain is told for this much more.
LARGER_BATCH = 4
# Times what was seen to pass in the loader: replaying batches cannot give back more.
MOST_OF_SEEN = 1.25
_LEAVE_OFF = "leave anomaly detection off, except in runs that look for a NaN"
# All pairs of more would take long, and change nothing.
MOST_STEPS = 200


def diagnose(record: ScriptRecord) -> Diagnosis:
    if not record.step_seconds or (record.missing and not record.sampled_steps):
        why = record.missing or "no step was timed"
        mean = statistics.fmean(record.step_seconds or [0.0])
        return _diagnosis(record, undecided=[Undecided("compute", why)], mean=mean)
    mean = statistics.fmean(record.step_seconds)
    noise = noise_share(record.windows) * mean
    claims = _merge(
        [
            *_from_changes(record),
            *_from_occasions(record),
            *judge_ranks(record),
            *judge_seen(record),
        ],
        noise if record.device is None else 0.0,
    )
    claims = with_garbage(claims)
    # An estimate that all ranks make together stands for what one of them was seen to wait.
    waits = {each.takes for each in claims if each.cause == "communication"} - {""}
    claims = [each for each in claims if each.suspect is None or each.suspect.key not in waits]
    if any(each.advice == _LEAVE_OFF and bounds(each.gain)[0] > 0 for each in claims):
        # What anomaly detection adds was seen at the lines of the model.
        claims = [each for each in claims if each.verified or _phase(each) != "forward"]
    claims += judge_device(record, claims, mean)
    found: list[Claim] = []
    excluded: list[Exclusion] = []
    undecided: list[Undecided] = []
    # A larger batch also spreads what another cause costs per step, so it is judged last.
    for claim in sorted(claims, key=lambda each: each.cause == "batch"):
        base = mean
        claim = within_device(claim, record, mean)
        if claim.gain.center <= noise:
            claim = seen_instead(claim, record, mean)
        if claim.gain.center <= noise or bounds(claim.gain)[0] <= 0:
            claim = copied_instead(claim, record, mean)
        if claim.cause == "batch":
            claim, base = _beside(claim, found, mean)
        low, high = bounds(claim.gain)
        least = claim.smallest_share * base
        if why := hidden(claim, record, mean):
            excluded.append(Exclusion(claim.cause, (0.0, min(high, least) * 1e3), why))
            continue
        # An update is timed by itself, not in steps.
        is_noise = claim.verified and claim.gain.center <= noise and claim.cause != "optimizer"
        if claim.always or (claim.gain.center >= least and low > 0 and not is_noise):
            found.append(claim)
        elif high < least:
            excluded.append(Exclusion(claim.cause, (low * 1e3, high * 1e3), claim.evidence))
        else:
            why = write_undecided(claim, noise if low > 0 and is_noise else None)
            undecided.append(Undecided(claim.cause, why))
    taken = {each.takes for each in found if each.takes}
    found = [each for each in found if each.suspect is None or each.suspect.key not in taken]
    findings = sorted(
        (write_finding(each, mean, record) for each in found), key=lambda each: -each.gain_ms
    )
    named = {each.cause for each in findings}
    undecided = [each for each in undecided if each.cause not in named]
    named |= {each.cause for each in undecided}
    # Of many lines that are not it, the one that could give back most speaks for all.
    excluded.sort(key=lambda each: each.gain_ci[1])
    excluded = [*{each.cause: each for each in excluded if each.cause not in named}.values()]
    undecided += [
        Undecided(
            each.cause, f"the script failed with {each.failed} while this was tried: {each.what}"
        )
        for each in record.changes
        if each.failed
    ]
    if record.missing:
        undecided.append(Undecided("compute", record.missing))
    speed = measure_speed(record, mean)
    findings = findings or [write_healthy(record, speed, mean)]
    findings = add_up(findings, _together(record), mean)
    return _diagnosis(record, findings, excluded, undecided, mean, speed)


def _phase(claim: Claim) -> str:
    return claim.suspect.phase if claim.suspect is not None else ""


def _together(record: ScriptRecord) -> Interval | None:
    """What all changes gave back that could be made at once."""
    change = next((each for each in record.changes if each.variant == ALL), None)
    if change is None or change.failed:
        return None
    return gain_of(record.windows, change, usual_seconds(record))


def _diagnosis(
    record: ScriptRecord,
    findings: Sequence[ScriptFinding] = (),
    excluded: Sequence[Exclusion] = (),
    undecided: Sequence[Undecided] = (),
    mean: float = 0.0,
    speed: Speed | None = None,
) -> Diagnosis:
    phases = {name: seconds * 1e3 for name, seconds in record.phases.items()} if mean else {}
    if phases:
        phases["unattributed"] = mean * 1e3 - sum(phases.values())
    expected = expect(findings, mean)
    worth = find_worth(findings, mean)
    return Diagnosis(
        schema=SCHEMA,
        sentence=write_answer(record, findings, undecided, speed, worth),
        step_ms=_step_time(record),
        steps=record.steps,
        overhead={"share": record.hook_seconds / mean} if mean else {},
        phases=phases,
        findings=tuple(findings),
        excluded=tuple(excluded),
        cannot_tell=tuple(undecided),
        notes=record.notes,
        speed=speed,
        worth=worth,
        options=find_options(record),
        environment=describe_environment(record),
        record=record,
        expected_ms=expected,
        slow_steps=write_slow(record),
    )


def _step_time(record: ScriptRecord) -> StepTime | None:
    if not record.step_seconds:
        return None
    low, high = bounds(hodges_lehmann(record.step_seconds[:MOST_STEPS]))
    mean, median = statistics.fmean(record.step_seconds), statistics.median(record.step_seconds)
    tail = sorted(record.step_seconds)[-1 - len(record.step_seconds) // 20]
    return StepTime(mean * 1e3, median * 1e3, low * 1e3, high * 1e3, tail * 1e3)


def _beside(batch: Claim, found: Sequence[Claim], mean: float) -> tuple[Claim, float]:
    """What a larger batch gives back once the other causes are removed, and the step then.

    What waits for data was already left out of both its sides.
    """
    others = sum(each.gain.center for each in found)
    fixed = sum(each.gain.center for each in found if each.cause not in ("input", "transfer"))
    spread = fixed * batch.smallest_share / FIXED_SHARE
    return replace(batch, gain=batch.gain.map(lambda each: each - spread)), max(0.0, mean - others)


def _from_changes(record: ScriptRecord) -> Iterator[Claim]:
    usual = usual_seconds(record)
    suspects = [*record.suspects, *(each for rank in record.ranks for each in rank.suspects)]
    for change in record.changes:
        gain = gain_of(record.windows, change, usual)
        between_ranks = change.cause == "communication" and len(record.ranks) > 1
        if gain is None or change.failed or between_ranks or change.variant == ALL:
            continue
        if change.cause == "batch":
            # Two halves take longer than the whole by what is paid per step, whatever the batch.
            gain = gain.map(lambda each: each * (1 / LARGER_BATCH - 1))
        if change.cause == "optimizer":
            gain = _in_the_step(gain, record, change)
        yield Claim(
            change.cause,
            change.site,
            gain,
            verified=True,
            evidence=f"tried: {change.what}",
            smallest_share=FIXED_SHARE * (1 - 1 / LARGER_BATCH)
            if change.cause == "batch"
            else SMALLEST_SHARE,
            suspect=next((s for s in suspects if _speaks_for(change, s)), None),
            advice=_LEAVE_OFF if change.variant == NO_ANOMALIES else "",
        )


def _in_the_step(gain: Interval, record: ScriptRecord, change: Change) -> Interval:
    """Copies are updated again and again, and may lie in the caches; the script's own may not.

    So the gain is also told as that share of what the updates were seen to take.
    """
    alone = [each.per_step for each in record.windows if each.variant == change.against]
    seen = record.phases.get("optimizer", 0.0)
    if not alone or not seen:
        return gain
    scaled = scale(gain, seen / statistics.median(alone))
    ends = (*bounds(gain), *bounds(scaled))
    # No update gives back more than it was seen to take.
    center, low, high = (
        min(each, seen) for each in ((gain.center + scaled.center) / 2, min(ends), max(ends))
    )
    return Interval(center, low, high)


def _speaks_for(change: Change, suspect: Suspect) -> bool:
    """Whether this work alone was left out."""
    frozen = change.variant == FROZEN and suspect.key == GARBAGE
    return frozen or change.variant == replayed_name(suspect.key)


def _from_occasions(record: ScriptRecord) -> Iterator[Claim]:
    for phase in NOW_AND_THEN:
        parts = [each for each in record.occasions if each.phase == phase]
        costs = [(cost_of(each, usual_seconds(record)), each) for each in parts]
        known = [(cost, each) for cost, each in costs if cost is not None]
        if not parts or len(known) < len(parts):
            continue
        per_step = [scale(cost, each.times / each.steps) for cost, each in known]
        yield Claim(
            "evaluation" if phase == "evaluation" else "host",
            None,
            functools.reduce(add, per_step),
            verified=True,
            evidence=f"left out in {sum(len(each.left_out) for each in parts)} of "
            f"{sum(each.times for each in parts)} steps that had it: {parts[0].what}",
            phase=phase,
        )


def _merge(claims: Sequence[Claim], noise: float) -> list[Claim]:
    """One claim per matter: what was tried gives the gain, what was seen gives cause and line."""
    tried = [each for each in claims if each.verified]
    merged, used = [], set()
    for claim in claims:
        if claim.verified:
            continue
        proof = _proof(claim, tried)
        if proof is None:
            merged.append(claim)
        elif id(proof) not in used:
            used.add(id(proof))
            proven = _proven(claim, proof)
            merged.append(proven if _decides(proven, claim, noise) else claim)
    # Without a line that suffers from anything, a function that could be left out is no cause.
    seen = {each.cause for each in merged}
    return merged + [
        each
        for each in tried
        if id(each) not in used
        and each.suspect is None
        and each.phase is None
        # Values that are merely kept leave the work around them, which was seen as a whole.
        and not (each.cause == "sync" and "sync" in seen)
    ]


def _proven(seen: Claim, proof: Claim) -> Claim:
    gain, evidence = _nearest(proof.gain, seen.gain.center), proof.evidence
    if seen.suspect is not None and seen.suspect.phase == "input":
        # Kept batches are also warm in the caches, and their workers' cores are free.
        most = MOST_OF_SEEN * bounds(seen.gain)[1]
        low, high = bounds(gain)
        if low >= most:
            # The trial gave back more than there was; what was seen says how sure that is.
            low = bounds(seen.gain)[0]
            evidence += f"; at most {number(most * 1e3, 3)} ms is counted, by what was seen there"
        gain = Interval(min(gain.center, most), low, min(high, most))
    return replace(
        proof,
        site=seen.site or proof.site,
        cause=seen.cause,
        gain=gain,
        suspect=seen.suspect,
        evidence=evidence,
        advice=seen.advice,
    )


def _nearest(tried: Interval, seen: float) -> Interval:
    """What was seen, as far as the trial allows it.

    Windows on a busy machine bound a gain widely; within the bounds samples know better.
    """
    low, high = bounds(tried)
    return Interval(min(max(seen, low), high), low, high)


def _decides(proven: Claim, seen: Claim, noise: float) -> bool:
    """A trial that was too noisy to tell nothing from what was seen leaves it an estimate.

    So does one whose unchanged windows differ by more: samples are of many steps together.
    """
    low, high = bounds(proven.gain)
    if seen.gain.center <= noise:
        return False
    return (low > 0 and proven.gain.center > noise) or high < seen.gain.center


def _proof(claim: Claim, tried: Sequence[Claim]) -> Claim | None:
    for each in tried:
        if claim.suspect is not None and each.suspect is claim.suspect:
            return each
    for each in tried:
        # Kept batches are handed out by a loader that was started all the same.
        suspect = claim.suspect
        waits = suspect is not None and suspect.phase == "input" and suspect.key != STARTS
        if waits and each.cause == "input" and each.suspect is None:
            return each
        if claim.suspect is not None and each.phase == claim.suspect.phase:
            return each
        kept = claim.cause == each.cause == "sync" and each.suspect is None
        if kept and each.gain.center >= claim.gain.center:
            return each
        # Kept copies are of tensors, not of Python's numbers that are made into some.
        copies = suspect is None or suspect.copy_seconds >= suspect.converted_seconds
        if claim.cause == "transfer" and each.cause == "transfer" and copies:
            return each
    return None
