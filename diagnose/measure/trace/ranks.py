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

# By which two sequences of collectives may be shifted against each other.
_MOST_SHIFT = 64


@dataclass(frozen=True)
class Arrivals:
    """When one rank began and ended each of its collectives, inside the steps."""

    collectives: Sequence[Span]
    zero: float = 0.0  # from when on these times count, by its own clock

    @staticmethod
    def of(events: Events, host: Host, spans: Sequence[Span]) -> Arrivals:
        """On the device, those of the largest group: only these meet all ranks."""
        on_device = [each for each in events.work if each.kind == EXCHANGE]
        group = max((each.group for each in on_device), default=0)
        found = [(each.start, each.end) for each in on_device if each.group == group]
        found = found or join([(start, end) for start, end, _ in host.collectives])
        return Arrivals([each for each in found if is_inside(each[0], spans)])


def align(ranks: Sequence[RankTrace], arrivals: Sequence[Arrivals]) -> list[RankTrace]:
    """Each rank with what it waits for, and by how much it comes later than the first."""
    told = [
        replace(rank, collectives=len(arrived.collectives), own_seconds=_own(rank, arrived))
        for rank, arrived in zip(ranks, arrivals, strict=True)
    ]
    counts = [len(each.collectives) for each in arrivals]
    if len(ranks) < 2 or 0 in counts:
        return told
    # A trace that began or ended earlier has more of them.
    fewest = arrivals[counts.index(min(counts))].collectives
    rows = [_match(each.collectives, fewest) for each in arrivals]
    offsets = [_offset(row, rows[0]) for row in rows]
    begins = [
        [start - offset for start, _ in row] for row, offset in zip(rows, offsets, strict=True)
    ]
    earliest = list(map(min, zip(*begins, strict=True)))
    note = f"the ranks show {min(counts)} to {max(counts)} collectives: they were matched by time"
    return [
        replace(
            rank,
            clock_offset=offset + arrived.zero - arrivals[0].zero,
            skew_seconds=statistics.fmean(
                at - first for at, first in zip(row, earliest, strict=True)
            ),
            notes=(*rank.notes, note) if min(counts) < max(counts) else rank.notes,
        )
        for rank, arrived, offset, row in zip(told, arrivals, offsets, begins, strict=True)
    ]


def _match(longer: Sequence[Span], shorter: Sequence[Span]) -> Sequence[Span]:
    """The part of one rank's collectives that ends in the rhythm of another's."""

    def spread(shift: int) -> float:
        part = longer[shift : shift + len(shorter)]
        middle = _offset(part, shorter)
        return sum(abs(a[1] - b[1] - middle) for a, b in zip(part, shorter, strict=True))

    shifts = range(min(len(longer) - len(shorter), _MOST_SHIFT) + 1)
    shift = min(shifts, key=spread)
    return longer[shift : shift + len(shorter)]


def _offset(row: Sequence[Span], other: Sequence[Span]) -> float:
    """Between two clocks: a collective ends everywhere at once."""
    return statistics.median(a[1] - b[1] for a, b in zip(row, other, strict=True))


def _own(rank: RankTrace, arrived: Arrivals) -> float:
    steps = len(rank.steps)
    whole = sum(each.seconds for each in rank.steps) / steps
    return max(0.0, whole - length(join(sorted(arrived.collectives))) / steps)
