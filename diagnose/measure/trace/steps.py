"""Where does a step of the traced job begin and end?

As the profiler marked it; else from one update of the weights to the next; else from one call of
the model to the next; else by the shortest pattern of operators that repeats.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from diagnose.measure.trace.events import DOUBLE, MODULE, NOTE, OP, Events, Lane
from diagnose.measure.trace.spans import Span

_FEWEST = 2  # one repetition shows a period
# Of the operators, so many must be the same one period later.
_SAME_SHARE = 0.9
_MOST_OPERATORS = 20_000


class Steps(NamedTuple):
    """Their starts and ends in seconds, and what a step ends with."""

    spans: Sequence[Span]
    boundary: str


def find_steps(events: Events, main: Lane | None) -> Steps:
    if main is not None:
        for found in (_marked(events, main), _updates(events, main), _calls(events, main)):
            if found is not None:
                return found
        if (found := _repeated(main)) is not None:
            return found
    return Steps([], "")


def _marked(events: Events, main: Lane) -> Steps | None:
    spans = [
        (main.starts[at], main.ends[at])
        for at in _notes(events, main)
        if events.names[main.names[at]].startswith("ProfilerStep#")
    ]
    return Steps(sorted(spans), "profiler step") if spans else None


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
    """The shortest distance after which nearly all operators come again."""
    order = sorted(
        (main.starts[at], -main.ends[at], main.names[at])
        for at, kind in enumerate(main.kinds)
        if kind in (OP, DOUBLE)
    )
    starts: list[float] = []
    names: list[int] = []
    until = -1.0
    for start, minus_end, name in order:
        if start >= until and len(names) < _MOST_OPERATORS:
            until = -minus_end
            starts.append(start)
            names.append(name)
    counts = Counter(names)
    repeated = [name for name, count in counts.items() if count > _FEWEST]
    if not repeated:
        return None
    rarest = min(repeated, key=counts.__getitem__)
    places = [at for at, name in enumerate(names) if name == rarest]
    for period in sorted({later - places[0] for later in places[1:]}):
        pairs = zip(names, names[period:], strict=False)
        same = sum(one == other for one, other in pairs)
        if same >= _SAME_SHARE * (len(names) - period) and 2 * period <= len(names):
            return _between(starts[places[0] :: period], "repeated pattern of operators")
    return None


def _between(bounds: Sequence[float], boundary: str) -> Steps | None:
    spans = [(a, b) for a, b in itertools.pairwise(bounds) if b > a]
    return Steps(spans, boundary) if spans else None


def _notes(events: Events, main: Lane) -> list[int]:
    return [at for at, kind in enumerate(main.kinds) if kind == NOTE]
