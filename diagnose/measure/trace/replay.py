"""How long would the steps take without some of the work? A replay of what waits for what.

The host calls the driver in the order it did; a piece of work begins when it was launched and its
stream is free, as late after that as it did; a call that waited for the device waits for the same
work again. Whatever is left out then shows on the last step's end. It is a bound: what replaces
the work that is left out takes time too.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence

from diagnose.measure.trace.events import COPY, Events, Work
from diagnose.measure.trace.host import SYNCHRONIZES, Host, Launch
from diagnose.measure.trace.spans import Span, join

# Work that begins so soon after other work ended, on another stream, waited for it.
_AT_ONCE_SECONDS = 20e-6
_WAITS_FOR_COPY = re.compile(r"Memcpy")


class Replay:
    """The dependencies of one trace, from the first step to the last."""

    def __init__(self, events: Events, host: Host, spans: Sequence[Span]) -> None:
        self._start, self._end = spans[0][0], spans[-1][1]
        self._calls = [
            (link, call) for link, call in host.calls if self._start <= call.start < self._end
        ]
        self._work: dict[int, list[Work]] = {}
        self._unlinked: list[Work] = []
        wanted = {link for link, _ in self._calls if link >= 0}
        for each in events.work:
            if each.link in wanted:
                self._work.setdefault(each.link, []).append(each)
            elif self._start <= each.start < self._end:
                self._unlinked.append(each)
        self._waits = [self._waits_of(events.names[call.name], link) for link, call in self._calls]
        self._after = self._find_neighbours(events.work)
        self._whole = self._run((), lambda work: True, lambda call: True)

    def _waits_of(self, name: str, link: int) -> str:
        """For what a call waits: everything launched, its own copy, or nothing."""
        if SYNCHRONIZES.search(name):
            return "all"
        copies = _WAITS_FOR_COPY.search(name) and link in self._work
        return "own" if copies and self._work[link][-1].kind == COPY else ""

    def _find_neighbours(self, work: Sequence[Work]) -> dict[Work, Work]:
        """Work of another stream that a piece of work began right after."""
        after: dict[Work, Work] = {}
        ends = sorted(work, key=lambda each: each.end)
        last: dict[tuple[int, int], Work] = {}
        at = 0
        for each in work:
            while at < len(ends) and ends[at].end <= each.start:
                last[ends[at].stream] = ends[at]
                at += 1
            others = [one for stream, one in last.items() if stream != each.stream]
            latest = max(others, key=lambda one: one.end, default=None)
            own = last.get(each.stream)
            if latest is None or each.start - latest.end > _AT_ONCE_SECONDS:
                continue
            if own is None or latest.end > own.end:
                after[each] = latest
        return after

    def bound(
        self,
        removed: Sequence[Span] = (),
        runs: Callable[[Work], bool] = lambda work: True,
        waits: Callable[[Launch], bool] = lambda call: True,
    ) -> float:
        """Seconds by which all steps together end earlier.

        `removed` is what the host leaves out, `runs` says which work of the device stays, and
        `waits` which calls still wait for it.
        """
        return max(0.0, self._whole - self._run(join(sorted(removed)), runs, waits))

    def _run(
        self,
        removed: Sequence[Span],
        runs: Callable[[Work], bool],
        waits: Callable[[Launch], bool],
    ) -> float:
        saved = 0.0  # by the host, up to now
        cut = _Cut(removed, self._start)
        ends: dict[Work, float] = {}
        free: dict[tuple[int, int], tuple[float, float]] = {}  # when a stream is free: then, now
        for (link, call), waiting in zip(self._calls, self._waits, strict=True):
            saved += cut.until(call.start)
            for each in self._work.get(link, ()):
                then, now = free.get(each.stream, (float("-inf"), float("-inf")))
                other = self._after.get(each)
                if other is not None and other in ends:
                    then, now = max(then, other.end), max(now, ends[other])
                lag = max(0.0, each.start - max(then, call.start))
                launch = call.start - saved
                begin = max(now, launch + lag) if then < call.start else max(now + lag, launch)
                ends[each] = begin + (each.end - each.start if runs(each) else 0.0)
                free[each.stream] = each.end, ends[each]
            saved += self._wait(call, link, waiting, saved, ends, free, waits)
        saved += cut.until(self._end)
        latest = max((now for _, now in free.values()), default=self._start)
        # Nobody knows what launched these, but their streams must still run them.
        rest: Counter[tuple[int, int]] = Counter()
        for each in filter(runs, self._unlinked):
            rest[each.stream] += each.end - each.start  # type: ignore[assignment]
        return max(self._end - saved - self._start, latest - self._start, *rest.values(), 0.0)

    def _wait(
        self,
        call: Launch,
        link: int,
        waiting: str,
        saved: float,
        ends: dict[Work, float],
        free: dict[tuple[int, int], tuple[float, float]],
        waits: Callable[[Launch], bool],
    ) -> float:
        """What the host saves in a call that waits for the device; below 0, what it loses."""
        if waiting == "all":
            # A stream that was not done when the call came back was not waited for.
            until = call.end + _AT_ONCE_SECONDS
            done = [(then, now) for then, now in free.values() if then <= until]
            then = max((each for each, _ in done), default=self._start)
            now = max((each for _, each in done), default=self._start)
        elif waiting == "own":
            # A copy from ordinary memory holds the host from its beginning on.
            copy = self._work[link][-1]
            if copy.start >= call.end:
                return 0.0
            then, now = copy.start, ends[copy] - (copy.end - copy.start)
        else:
            return 0.0
        begin = call.start - saved
        rest = call.end - min(call.end, max(then, call.start))
        return call.end - saved - (max(begin, now) if waits(call) else begin) - rest


class _Cut:
    """How much of what is removed lies before a time that only moves forward."""

    def __init__(self, spans: Sequence[Span], start: float) -> None:
        self._spans, self._at, self._next = spans, start, 0

    def until(self, time: float) -> float:
        """Since the time that was asked for last."""
        total = 0.0
        while self._next < len(self._spans):
            first, last = self._spans[self._next]
            total += max(0.0, min(last, time) - max(first, self._at))
            if last > time:
                break
            self._next += 1
        self._at = max(self._at, time)
        return total
