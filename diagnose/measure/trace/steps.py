"""Where does a step of the traced job begin and end?

As the profiler marked it; else from one update of the weights to the next; else from one call of
the model to the next; else by the pattern of operators that repeats.
"""

from __future__ import annotations

import itertools
import statistics
from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from diagnose.measure.trace.events import DOUBLE, MODULE, NOTE, OP, Events, Lane
from diagnose.measure.trace.spans import Span

_FEWEST = 2  # one repetition shows a period
# Of the kinds of operators, so many come equally often in every step.
_SAME_SHARE = 0.7
# Of the operators of the other steps: one with fewer is no whole step.
_PARTIAL_SHARE = 0.5


class Steps(NamedTuple):
    """Their starts and ends in seconds, and what a step ends with."""

    spans: Sequence[Span]
    boundary: str


def find_steps(events: Events, main: Lane | None) -> Steps:
    if main is not None:
        marked, updates = _marked(events, main), _updates(events, main)
        # One mark around several updates: whoever profiled did not say when a step ended.
        if marked is not None and (len(marked.spans) > 1 or updates is None):
            return marked
        for found in (updates, _calls(events, main)):
            if found is not None:
                return found
        if (found := _repeated(main)) is not None:
            return found
    return Steps([], "")


def _marked(events: Events, main: Lane) -> Steps | None:
    spans = sorted(
        (main.starts[at], main.ends[at])
        for at in _notes(events, main)
        if events.names[main.names[at]].startswith("ProfilerStep#")
    )
    if len(spans) > _FEWEST:
        # The last mark may have been set when the loop was over, or be cut off.
        begins = sorted(
            main.starts[at] for at, kind in enumerate(main.kinds) if kind in (OP, DOUBLE)
        )
        counts = [bisect_left(begins, end) - bisect_left(begins, start) for start, end in spans]
        if counts[-1] < _PARTIAL_SHARE * statistics.median(counts):
            spans.pop()
    return Steps(spans, "profiler step") if spans else None


def _updates(events: Events, main: Lane) -> Steps | None:
    """By the optimizer that steps first, where there are several."""
    places = [
        at
        for at in _notes(events, main)
        if events.names[main.names[at]].startswith("Optimizer.step#")
    ]
    if not places:
        return None
    first = main.names[min(places, key=main.starts.__getitem__)]
    return _between(sorted(main.ends[at] for at in places if main.names[at] == first), "optimizer")


def _calls(events: Events, main: Lane) -> Steps | None:
    """By the outermost module that is called most often."""
    modules = sorted(
        (main.starts[at], -main.ends[at], main.names[at])
        for at, kind in enumerate(main.kinds)
        if kind == MODULE
    )
    outermost, until = [], -1.0
    for start, minus_end, name in modules:
        if start >= until:
            until = -minus_end
            outermost.append((start, name))
    counts = Counter(name for _, name in outermost)
    if not counts:
        return None
    busiest = counts.most_common(1)[0][0]
    return _between([start for start, name in outermost if name == busiest], "model call")


def _repeated(main: Lane) -> Steps | None:
    """From one call to the next of an operator that comes once in every step.

    Of most operators there are then a multiple of as many as there are steps; of those that come
    once in a layer, only a few are.
    """
    order = sorted(
        (main.starts[at], -main.ends[at], main.names[at])
        for at, kind in enumerate(main.kinds)
        if kind in (OP, DOUBLE)
    )
    starts: dict[int, list[float]] = {}
    until = -1.0
    for start, minus_end, name in order:
        if start >= until:  # the outermost
            until = -minus_end
            starts.setdefault(name, []).append(start)
    counts = [len(each) for each in starts.values()]
    for count in sorted(set(counts), reverse=True):
        multiples = sum(abs(each / count - max(1, round(each / count))) < 0.1 for each in counts)
        if count > _FEWEST and multiples >= _SAME_SHARE * len(counts):
            once = [each for each in starts.values() if len(each) == count]
            return _between(min(once, key=_irregularity), "repeated pattern of operators")
    return None


def _irregularity(starts: Sequence[float]) -> float:
    gaps = [later - sooner for sooner, later in itertools.pairwise(starts)]
    return statistics.pstdev(gaps) / statistics.fmean(gaps)


def _between(bounds: Sequence[float], boundary: str) -> Steps | None:
    spans = [(a, b) for a, b in itertools.pairwise(bounds) if b > a]
    return Steps(spans, boundary) if spans else None


def _notes(events: Events, main: Lane) -> list[int]:
    return [at for at, kind in enumerate(main.kinds) if kind == NOTE]
