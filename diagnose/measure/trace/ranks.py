"""Which rank do the others wait for? Clocks are laid over each other at the ends of collectives.

A collective ends on all ranks at nearly the same moment, whatever their clocks say; who begins it
last was waited for.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

from diagnose.measure.trace.events import EXCHANGE, Events
from diagnose.measure.trace.host import Host
from diagnose.measure.trace.spans import Span, is_inside, join, length
from diagnose.records.trace import RankTrace


@dataclass(frozen=True)
class Arrivals:
    """When one rank began and ended each of its collectives, inside the steps."""

    collectives: Sequence[Span]

    @staticmethod
    def of(events: Events, host: Host, spans: Sequence[Span]) -> Arrivals:
        on_device = [(each.start, each.end) for each in events.work if each.kind == EXCHANGE]
        found = on_device or join([(start, end) for start, end, _ in host.collectives])
        return Arrivals([each for each in found if is_inside(each[0], spans)])


def align(ranks: Sequence[RankTrace], arrivals: Sequence[Arrivals]) -> list[RankTrace]:
    """Each rank with what it waits for, and by how much it comes later than the first."""
    counts = {len(each.collectives) for each in arrivals}
    told = [
        replace(
            rank,
            collectives=len(arrived.collectives),
            own_seconds=_own(rank, arrived),
        )
        for rank, arrived in zip(ranks, arrivals, strict=True)
    ]
    if len(ranks) < 2 or 0 in counts:
        return told
    shared = min(counts)
    first = arrivals[0].collectives
    offsets = [
        statistics.median(each.collectives[at][1] - first[at][1] for at in range(shared))
        for each in arrivals
    ]
    starts = [
        [each.collectives[at][0] - offset for at in range(shared)]
        for each, offset in zip(arrivals, offsets, strict=True)
    ]
    earliest = [min(row[at] for row in starts) for at in range(shared)]
    return [
        replace(
            rank,
            clock_offset=offset,
            skew_seconds=statistics.fmean(row[at] - earliest[at] for at in range(shared)),
            notes=rank.notes
            if len(counts) == 1
            else (*rank.notes, f"the ranks show {min(counts)} to {max(counts)} collectives"),
        )
        for rank, offset, row in zip(told, offsets, starts, strict=True)
    ]


def _own(rank: RankTrace, arrived: Arrivals) -> float:
    steps = len(rank.steps)
    whole = sum(each.seconds for each in rank.steps) / steps
    return max(0.0, whole - length(join(sorted(arrived.collectives))) / steps)
