"""What can be asked of times that begin and end? All lists of them are sorted."""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Sequence

Span = tuple[float, float]


def join(spans: Sequence[Span]) -> list[Span]:
    """The union."""
    joined: list[Span] = []
    for start, end in spans:
        if joined and start <= joined[-1][1]:
            if end > joined[-1][1]:
                joined[-1] = (joined[-1][0], end)
        else:
            joined.append((start, end))
    return joined


def length(spans: Sequence[Span]) -> float:
    return sum(end - start for start, end in spans)


def subtract(start: float, end: float, others: Sequence[Span]) -> Iterator[Span]:
    """What is left from start to end without the others, which do not overlap each other."""
    at = max(0, bisect.bisect_right(others, (start, float("inf"))) - 1)
    while at < len(others) and others[at][0] < end:
        if others[at][0] > start:
            yield start, others[at][0]
        start = max(start, others[at][1])
        at += 1
    if start < end:
        yield start, end


def overlap(ones: Sequence[Span], others: Sequence[Span]) -> float:
    """Seconds in both; no list overlaps itself."""
    total, at = 0.0, 0
    for start, end in ones:
        while at < len(others) and others[at][1] <= start:
            at += 1
        until = at
        while until < len(others) and others[until][0] < end:
            total += min(end, others[until][1]) - max(start, others[until][0])
            until += 1
    return total


def step_of(starts: Sequence[float], at: float) -> int:
    """The step that this time lies in or behind; -1 before the first."""
    return bisect.bisect_right(starts, at) - 1


def is_inside(at: float, spans: Sequence[Span]) -> bool:
    step = bisect.bisect_right(spans, (at, float("inf"))) - 1
    return step >= 0 and at < spans[step][1]
