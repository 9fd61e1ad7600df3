"""Do the ranks wait for one of them, or for the wire? From every rank's own windows.

Without an exchange each rank takes its own time. The slowest one waits for nobody, so what it
gains without exchanges is their price; what it takes longer than the others, they all pay.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence

from diagnose.analyze.script.claims import Claim, gain_of
from diagnose.analyze.units import number
from diagnose.records.script import Change, RankTimes, ScriptRecord, Site, Suspect
from diagnose.records.stats import FEWEST_FOR_INTERVAL, Interval, hodges_lehmann


def judge_ranks(record: ScriptRecord) -> Iterator[Claim]:
    if len(record.ranks) < 2:
        return
    yield from _straggler(record)
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


def _straggler(record: ScriptRecord) -> Iterator[Claim]:
    change = _alone(record)
    variant = change.variant if change is not None else ""
    slowest = _slowest(record)
    others = [each for each in record.ranks if each is not slowest]
    mine = own_seconds(slowest, variant)
    theirs = [own_seconds(each, variant) for each in others]
    blocks = min(len(mine), *(len(each) for each in theirs))
    excess = [
        mine[block] - statistics.median(each[block] for each in theirs) for block in range(blocks)
    ]
    yield Claim(
        "straggler",
        _extra_site(slowest, others),
        hodges_lehmann(excess),
        verified=blocks >= FEWEST_FOR_INTERVAL,
        evidence=f"rank {slowest.rank} takes {number(statistics.median(mine) * 1e3, 3)} ms by "
        f"itself, the others {number(statistics.median(map(statistics.median, theirs)) * 1e3, 3)}",
    )


def _extra_site(slowest: RankTimes, others: Sequence[RankTimes]) -> Site | None:
    """The line that takes most more time there than elsewhere."""

    def excess(suspect: Suspect) -> float:
        elsewhere = [
            next((s.seconds for s in each.suspects if s.key == suspect.key), 0.0) for each in others
        ]
        return suspect.seconds - statistics.median(elsewhere)

    own = [each for each in slowest.suspects if each.phase != "communication"]
    worst = max(own, key=excess, default=None)
    return worst.site if worst is not None else None


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
        )
