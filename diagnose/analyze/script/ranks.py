"""Do the ranks wait for one of them, or for the wire? From every rank's own windows.

Without an exchange each rank takes its own time. The slowest one waits for nobody, so what it
gains without exchanges is their price; what it takes longer than the others, they all pay. Work
that is spread evenly still has to be done, so balancing gives back what the slowest takes above
the mean of all; more only where its extra work could be left out, and that was tried.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence

from diagnose.analyze.script.claims import SMALLEST_SHARE, Claim, bounds, gain_of, usual_seconds
from diagnose.analyze.units import number
from diagnose.records.script import (
    Change,
    Phase,
    RankTimes,
    ScriptRecord,
    Suspect,
    replayed_name,
)
from diagnose.records.stats import FEWEST_FOR_INTERVAL, Interval, hodges_lehmann

# Times the work of the others: only then the ranks' own samples are enough to call one slow.
UNEVEN = 1.5
_NEVER_WAITS: tuple[Phase, ...] = ("input", "forward", "host", "optimizer")


def judge_ranks(record: ScriptRecord) -> Iterator[Claim]:
    if len(record.ranks) < 2:
        return
    yield _straggler(record)
    yield from _communication(record)


def own_seconds(times: RankTimes, variant: str) -> list[float]:
    """Per step, block by block, without waiting for others."""
    alone = [each.seconds / each.steps for each in times.windows if each.variant == variant]
    return alone or [times.step_seconds - times.waiting_seconds]


def _alone(record: ScriptRecord) -> Change | None:
    return next((each for each in record.changes if each.cause == "communication"), None)


def _slowest(record: ScriptRecord) -> RankTimes:
    change = _alone(record)
    variant = change.variant if change is not None else ""
    return max(record.ranks, key=lambda each: statistics.median(own_seconds(each, variant)))


def _straggler(record: ScriptRecord) -> Claim:
    alone, seen = _straggler_alone(record), _straggler_seen(record)
    told = alone.gain.center >= SMALLEST_SHARE * record.ranks[0].step_seconds
    return alone if told or seen is None else seen


def _straggler_alone(record: ScriptRecord) -> Claim:
    change = _alone(record)
    variant = change.variant if change is not None else ""
    slowest = _slowest(record)
    others = [each for each in record.ranks if each is not slowest]
    mine = own_seconds(slowest, variant)
    theirs = [own_seconds(each, variant) for each in others]
    blocks = min(len(mine), *(len(each) for each in theirs))
    excess = [
        mine[block] - statistics.fmean([mine[block], *(each[block] for each in theirs)])
        for block in range(blocks)
    ]
    gain = hodges_lehmann(excess)
    if blocks < FEWEST_FOR_INTERVAL:  # sampled once: nobody knows how much it varies
        gain = Interval(gain.center, 0.0, 2 * gain.center)
    evidence = (
        f"rank {slowest.rank} takes {number(statistics.median(mine) * 1e3, 3)} ms by itself, the "
        f"others {number(statistics.median(map(statistics.median, theirs)) * 1e3, 3)}"
    )
    extra, told = _extra(slowest, others)
    evidence += told
    removed = next(
        (each for each in record.changes if extra and each.variant == replayed_name(extra.key)),
        None,
    )
    tried = gain_of(record.windows, removed, usual_seconds(record)) if removed else None
    if removed is not None and tried is not None and bounds(tried)[0] > 0 and not removed.failed:
        balanced = number(gain.center * 1e3, 3)
        evidence += f"; evenly spread it would save {balanced} ms; tried: {removed.what}"
        gain = tried
    return Claim(
        "straggler",
        extra.site if extra is not None else None,
        gain,
        verified=blocks >= FEWEST_FOR_INTERVAL,
        evidence=evidence,
        takes=extra.key if extra is not None else "",
    )


def _straggler_seen(record: ScriptRecord) -> Claim | None:
    """Where the script's own lines exchange something, ranks wait for each other in every window.

    Then the work that cannot wait tells them apart, and all else is taken to be in proportion.
    """
    work = {
        each.rank: sum(s.seconds for s in each.suspects if s.phase in _NEVER_WAITS)
        for each in record.ranks
    }
    slowest = max(record.ranks, key=lambda each: work[each.rank])
    others = [each for each in record.ranks if each is not slowest]
    waits = any(s.phase == "communication" for each in others for s in each.suspects)
    usual = statistics.median(work[each.rank] for each in others)
    if not waits or work[slowest.rank] <= UNEVEN * usual:
        return None
    own = slowest.step_seconds - slowest.waiting_seconds
    mean = own * statistics.fmean(work.values()) / work[slowest.rank]
    gain = own - mean
    extra, told = _extra(slowest, others)
    return Claim(
        "straggler",
        extra.site if extra is not None else None,
        # What of the rest is in proportion to it is not known.
        Interval(gain, min(gain, work[slowest.rank] - statistics.fmean(work.values())), own),
        verified=False,
        evidence=f"outside the backward pass and exchanges rank {slowest.rank} works for "
        f"{number(work[slowest.rank] * 1e3, 3)} ms per step, the others for "
        f"{number(usual * 1e3, 3)}, and they wait for it{told}",
        takes=extra.key if extra is not None else "",
    )


def _extra(slowest: RankTimes, others: Sequence[RankTimes]) -> tuple[Suspect | None, str]:
    """The work that takes most more time there than elsewhere, and how much more, in words."""

    def excess(suspect: Suspect) -> float:
        elsewhere = [
            next((s.seconds for s in each.suspects if s.key == suspect.key), 0.0) for each in others
        ]
        return suspect.seconds - statistics.median(elsewhere)

    own = [each for each in slowest.suspects if each.phase != "communication"]
    worst = max(own, key=excess, default=None)
    if worst is None:
        return None, ""
    more = number(excess(worst) * 1e3, 3)
    site = worst.site
    return worst, f"; it spends {more} ms more than they do at {site.file}:{site.line}"


def _communication(record: ScriptRecord) -> Iterator[Claim]:
    """The repair that was tried last keeps what training needs."""
    tried = [each for each in record.changes if each.cause == "communication"]
    slowest = _slowest(record)
    if tried:
        change = tried[-1]
        gain = gain_of(slowest.windows, change, slowest.step_seconds)
        if gain is not None:
            yield Claim(
                "communication",
                change.site,
                gain,
                verified=True,
                evidence=f"tried: {change.what}",
            )
        return
    waiting = [each for each in slowest.suspects if each.phase == "communication"]
    if waiting:
        worst = max(waiting, key=lambda each: each.seconds)
        seconds = sum(each.seconds for each in waiting)
        yield Claim(
            "communication",
            worst.site,
            Interval(seconds, 0.8 * seconds, 1.2 * seconds),
            verified=False,
            evidence=f"rank {slowest.rank}, which waits for nobody, spends "
            f"{number(seconds * 1e3, 3)} ms per step exchanging",
            takes=worst.key,
        )
