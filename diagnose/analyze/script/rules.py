"""Which causes does a run of somebody's script prove, exclude or leave open?

Every cause is judged by what removing it gives back, per step: from windows in which it was
removed where there are such windows, else from what its lines were seen to take. No rule knows
a name of the script's.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import replace

from diagnose.analyze.script.advice import advise
from diagnose.analyze.script.causes import judge_lines, judge_whole
from diagnose.analyze.script.claims import (
    NOW_AND_THEN,
    SMALLEST_SHARE,
    Claim,
    bounds,
    cost_of,
    gain_of,
    noise_share,
    usual_seconds,
)
from diagnose.analyze.script.ranks import judge_ranks
from diagnose.analyze.units import number, percent, scale, scaled
from diagnose.records.script import (
    SCHEMA,
    Diagnosis,
    Exclusion,
    ScriptFinding,
    ScriptRecord,
    Site,
    StepTime,
    Suspect,
    Undecided,
    doubled_name,
    replayed_name,
)
from diagnose.records.stats import Interval, hodges_lehmann

# A larger batch changes the training, so it is only named where half of a step is cost that
# does not grow with the batch.
FIXED_SHARE = 0.5
# Times what was seen to pass in the loader: replaying batches cannot give back more.
MOST_OF_SEEN = 1.25


def diagnose(record: ScriptRecord) -> Diagnosis:
    step = _step_time(record)
    mean = statistics.fmean(record.step_seconds) if record.step_seconds else 0.0
    if record.missing and (step is None or not record.sampled_steps):
        return _unmeasured(record, step)
    claims = _merge(
        [
            *_from_changes(record),
            *_from_occasions(record),
            *judge_ranks(record),
            *judge_lines(record),
            *judge_whole(record),
        ]
    )
    noise = noise_share(record.windows) * mean
    findings, excluded, open_ = [], [], []
    found: list[Claim] = []
    # A larger batch also spreads what another cause costs per step, so it is judged last.
    for claim in sorted(claims, key=lambda each: each.cause == "batch"):
        base = mean
        if claim.cause == "batch":
            claim, base = _beside(claim, found, mean)
        low, high = bounds(claim.gain)
        least = claim.smallest_share * base
        surely = low > 0 and (not claim.verified or claim.gain.center > noise)
        if claim.always or (claim.gain.center >= least and surely):
            found.append(claim)
            findings.append(_finding(claim, mean, record))
        elif high < least:
            excluded.append(Exclusion(claim.cause, (low * 1e3, high * 1e3), claim.evidence))
        else:
            open_.append(
                Undecided(
                    claim.cause,
                    f"between {number(low * 1e3, 3)} and {number(high * 1e3, 3)} ms of a step: "
                    f"{claim.evidence}; a longer run (--seconds) would decide it",
                )
            )
    findings.sort(key=lambda each: -each.gain_ms)
    named = {each.cause for each in findings}
    open_ = [each for each in open_ if each.cause not in named]
    named |= {each.cause for each in open_}
    # Of many lines that are not it, the one that could give back most speaks for all.
    excluded.sort(key=lambda each: each.gain_ci[1])
    excluded = [*{each.cause: each for each in excluded if each.cause not in named}.values()]
    open_ += [
        Undecided(each.cause, f"the script did not survive it ({each.failed}): {each.what}")
        for each in record.changes
        if each.failed and not each.doubles
    ]
    if record.missing:
        open_.append(Undecided("compute", record.missing))
    if not findings:
        findings = [_healthy(record, mean)]
    return Diagnosis(
        schema=SCHEMA,
        sentence=_sentence(record, step, findings, open_),
        step_ms=step,
        steps=record.steps,
        overhead={"share": record.hook_seconds / mean if mean else 0.0},
        phases=_phases(record, mean),
        findings=tuple(findings),
        excluded=tuple(excluded),
        cannot_tell=tuple(open_),
        notes=record.notes,
    )


def _beside(batch: Claim, found: Sequence[Claim], mean: float) -> tuple[Claim, float]:
    """What a larger batch gives back once the other causes are removed, and the step then.

    What waits for data was already left out of both its sides.
    """
    others = sum(each.gain.center for each in found)
    fixed = sum(each.gain.center for each in found if each.cause not in ("input", "transfer"))
    spread = fixed * batch.smallest_share / FIXED_SHARE
    low, high = bounds(batch.gain)
    gain = Interval(batch.gain.center - spread, low - spread, high - spread)
    return replace(batch, gain=gain), max(0.0, mean - others)


def _unmeasured(record: ScriptRecord, step: StepTime | None) -> Diagnosis:
    return Diagnosis(
        schema=SCHEMA,
        sentence=f"Nothing can be told: {record.missing}.",
        step_ms=step,
        steps=record.steps,
        overhead={},
        phases={},
        findings=(),
        excluded=(),
        cannot_tell=(Undecided("compute", record.missing),),
        notes=record.notes,
    )


def _step_time(record: ScriptRecord) -> StepTime | None:
    if not record.step_seconds:
        return None
    middle = statistics.median(record.step_seconds)
    interval = hodges_lehmann(record.step_seconds[:200])
    low, high = bounds(interval)
    return StepTime(middle * 1e3, low * 1e3, high * 1e3)


# --- claims ---


def _from_changes(record: ScriptRecord) -> Iterator[Claim]:
    usual = usual_seconds(record)
    for change in record.changes:
        gain = gain_of(record.windows, change, usual)
        if gain is None or change.failed or len(record.ranks) > 1:
            continue
        yield Claim(
            change.cause,
            change.site,
            gain,
            verified=True,
            evidence=f"tried: {change.what}",
            smallest_share=FIXED_SHARE * (1 - 1 / change.samples)
            if change.cause == "batch"
            else SMALLEST_SHARE,
            suspect=next((s for s in record.suspects if change.variant in _variants(s)), None),
            doubles=change.doubles,
        )


def _variants(suspect: Suspect) -> tuple[str, str]:
    """The changes that speak for this work alone."""
    return replayed_name(suspect.key), doubled_name(suspect.key)


def _from_occasions(record: ScriptRecord) -> Iterator[Claim]:
    for phase in NOW_AND_THEN:
        parts = [each for each in record.occasions if each.phase == phase]
        costs = [(cost_of(each, usual_seconds(record)), each) for each in parts]
        known = [(cost, each) for cost, each in costs if cost is not None]
        if not parts or len(known) < len(parts):
            continue
        per_step = [
            tuple(edge * each.times / each.steps for edge in (cost.center, *bounds(cost)))
            for cost, each in known
        ]
        yield Claim(
            "evaluation" if phase == "evaluation" else "host",
            None,
            Interval(*map(sum, zip(*per_step, strict=True))),
            verified=True,
            evidence=f"left out in {sum(len(each.left_out) for each in parts)} of "
            f"{sum(each.times for each in parts)} steps that had it: {parts[0].what}",
            phase=phase,
        )


def _merge(claims: Sequence[Claim]) -> list[Claim]:
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
            merged.append(proven if _decides(proven, claim) else claim)
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
    gain = _saved_of_doubled(seen, proof) if proof.doubles else proof.gain
    if seen.suspect is not None and seen.suspect.phase == "input":
        # Kept batches are also warm in the caches, and their workers' cores are free.
        most = MOST_OF_SEEN * bounds(seen.gain)[1]
        gain = Interval(*(min(each, most) for each in (gain.center, *bounds(gain))))
    gain = _nearest(gain, seen.gain.center)
    site = seen.site or proof.site
    return replace(proof, site=site, cause=seen.cause, gain=gain, suspect=seen.suspect)


def _nearest(tried: Interval, seen: float) -> Interval:
    """What was seen, as far as the trial allows it.

    Windows on a busy machine bound a gain widely; within the bounds samples know better.
    """
    low, high = bounds(tried)
    return Interval(min(max(seen, low), high), low, high)


def _saved_of_doubled(seen: Claim, proof: Claim) -> Interval:
    """Doubling shows what the work costs; what was seen says which part of it can be saved.

    A line that is doubled may double its backward pass or not, so what was seen is taken with
    it or without, whichever is nearer.
    """
    suspect = seen.suspect
    if suspect is None or proof.gain.center <= 0:
        return proof.gain
    costs = (
        proof.doubles * suspect.seconds,
        proof.doubles * (suspect.seconds + suspect.backward_seconds),
    )
    nearest = min(costs, key=lambda cost: abs(math.log(cost / proof.gain.center)))
    return scale(proof.gain, seen.gain.center / nearest)


def _decides(proven: Claim, seen: Claim) -> bool:
    """A trial that was too noisy to tell nothing from what was seen leaves it an estimate."""
    low, high = bounds(proven.gain)
    return low > 0 or high < seen.gain.center


def _proof(claim: Claim, tried: Sequence[Claim]) -> Claim | None:
    for each in tried:
        if claim.suspect is not None and each.suspect is claim.suspect:
            return each
        loader = claim.suspect is not None and claim.suspect.phase == "input"
        if loader and each.cause == "input" and each.suspect is None:
            return each
        if claim.suspect is not None and each.phase == claim.suspect.phase:
            return each
        kept = claim.cause == each.cause == "sync" and each.suspect is None
        if kept and each.gain.center >= claim.gain.center:
            return each
        if claim.cause == "transfer" and each.cause == "transfer":
            return each
    return None


# --- words ---


def _finding(claim: Claim, mean: float, record: ScriptRecord) -> ScriptFinding:
    low, high = bounds(claim.gain)
    site = claim.site or Site(record.script, 0, "")
    return ScriptFinding(
        cause=claim.cause,
        file=site.file,
        line=site.line,
        function=site.function,
        gain_ms=claim.gain.center * 1e3,
        gain_ci=(low * 1e3, high * 1e3),
        share=min(1.0, claim.gain.center / mean) if mean else 0.0,
        verified=claim.verified,
        evidence=claim.evidence,
        advice=advise(claim.cause, site, claim.suspect, record),
    )


def _healthy(record: ScriptRecord, mean: float) -> ScriptFinding:
    forward = [each for each in record.suspects if each.phase == "forward"]
    busiest = max(forward, key=lambda each: each.seconds + each.backward_seconds, default=None)
    site = busiest.site if busiest is not None else Site(record.script, 0, "")
    evidence = "no cause gives back more than 5 % of a step"
    if record.ceilings is not None and record.flops and mean:
        rate = record.flops / mean
        share = rate / record.ceilings.flops_per_second if record.ceilings.flops_per_second else 0.0
        evidence += (
            f"; {scaled(rate, 'FLOP/s')}, {percent(share)} of what a matrix product reaches here"
        )
    if busiest is not None:
        takes = busiest.seconds + busiest.backward_seconds
        evidence += (
            f"; the most time passes at {site.file}:{site.line}, {number(takes * 1e3, 3)} ms per "
            "step with its backward pass"
        )
    return ScriptFinding(
        "compute",
        site.file,
        site.line,
        site.function,
        0.0,
        (0.0, 0.0),
        0.0,
        False,
        evidence,
        advise("compute", site, busiest, record),
    )


def _phases(record: ScriptRecord, mean: float) -> dict[str, float]:
    phases = {name: seconds * 1e3 for name, seconds in record.phases.items()}
    if phases:
        phases["unattributed"] = mean * 1e3 - sum(phases.values())
    return phases


def _sentence(
    record: ScriptRecord,
    step: StepTime | None,
    findings: Sequence[ScriptFinding],
    undecided: Sequence[Undecided],
) -> str:
    if step is None:
        return "Nothing can be told: no step was timed."
    # Evaluation every so many steps, and growth, are in the mean but not in the median.
    mean = statistics.fmean(record.step_seconds) * 1e3
    takes = f"A step of {record.script} takes {number(mean)} ms on average"
    first = findings[0]
    if first.cause == "compute":
        open_ = dict.fromkeys(each.cause for each in undecided if each.cause != "compute")
        ending = f"; undecided: {', '.join(open_)}" if open_ else ""
        return f"{takes}, and nothing that could be decided gives back more than 5 % of it{ending}."
    how = "tried" if first.verified else "estimated"
    return (
        f"{takes}; {number(first.gain_ms, 3)} ms of it ({percent(first.share)}) is {first.cause} "
        f"at {first.file}:{first.line} ({how})."
    )
