"""What did the host do, and for which line? One walk through the nested events of each thread.

Every moment belongs to the innermost thing that was going on: a line, a phase of the step, and
what was done there. Operators of the backward pass belong to the line of their forward operator.
"""

from __future__ import annotations

import bisect
import re
import statistics
from collections import Counter, defaultdict
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from diagnose.measure.trace.events import (
    BACKWARD,
    CALL,
    DOUBLE,
    FRAME,
    LIBRARY,
    MODULE,
    NOTE,
    OP,
    SAVE,
    Events,
    Lane,
)
from diagnose.measure.trace.spans import Span, is_inside, join, step_of, subtract
from diagnose.records.script import Phase
from diagnose.records.trace import Doing

COPIES = frozenset(
    f"aten::{name}"
    for name in ("to", "_to_copy", "copy_", "contiguous", "clone", "type_as", "pin_memory")
)
READS = frozenset(("aten::item", "aten::_local_scalar_dense", "aten::is_nonzero"))
_VIEWS = frozenset(
    f"aten::{name}" for name in ("view", "select", "slice", "t", "transpose", "unsqueeze", "expand")
)
# Times what an operator takes that computes nothing: what takes no longer is mostly overhead.
_MOST_OVERHEAD = 24.0
SYNCHRONIZES = re.compile(r"(Stream|Device|Event|Ctx)Synchronize|(cuda|hip)Memcpy\w*(?<!Async)$")
_COPIES = re.compile(r"Memcpy")
_ALLOCATES = re.compile(r"(cuda|hip)(Host)?(Malloc|Free)(?!Async)")
_COLLECTIVE = re.compile(r"(nccl|gloo|mpi|ucc|c10d)[:_]", re.IGNORECASE)
# The engine's own name for it, or the old one of its operators.
_BACKWARD = re.compile(r"autograd::engine|torch::autograd::|\w+Backward\d*$")


class Owner(NamedTuple):
    """To whom a moment belongs."""

    site: int  # -1 where no line is known
    phase: Phase
    doing: Doing | None  # None where nothing is known to go on


class Launch(NamedTuple):
    """A call into the driver that gave the device something to do."""

    start: float
    end: float
    name: int
    owner: Owner
    operator: int  # the outermost one around it, of the backward pass its forward one; else -1


@dataclass
class Host:
    """What all threads did."""

    seconds: dict[int, dict[Owner, float]]  # by step; -1 is outside of all steps
    segments: list[tuple[float, float, Owner]] = field(default_factory=list)
    operators: Counter[tuple[int, Phase]] = field(default_factory=Counter)
    reads: Counter[tuple[int, Phase]] = field(default_factory=Counter)
    # Small operators by name and module.
    repeats: Counter[tuple[int, Phase, int, int]] = field(default_factory=Counter)
    small_seconds: Counter[tuple[int, Phase]] = field(default_factory=Counter)
    copy_seconds: Counter[tuple[int, Phase]] = field(default_factory=Counter)
    calls: list[tuple[int, Launch]] = field(default_factory=list)  # by correlation, in order
    updates: set[int] = field(default_factory=set)  # names of operators that update the weights
    double_seconds: Counter[int] = field(default_factory=Counter)  # by site
    operator_seconds: float = 0.0
    collectives: list[tuple[float, float, int]] = field(default_factory=list)
    # Python's time in functions of libraries, by whose line they were called from.
    libraries: Counter[tuple[int, Phase, int]] = field(default_factory=Counter)


class _Open:
    """Something on the stack."""

    __slots__ = ("end", "library", "module", "operator", "owner")

    def __init__(self, end: float, owner: Owner) -> None:
        self.end, self.owner = end, owner
        # The numbers of their names: around it, innermost; of operators the outermost.
        self.operator = self.module = self.library = -1


def main_lane(events: Events) -> Lane | None:
    """The thread that steps: the one with the profiler's marks, else with most operators."""

    def weight(lane: Lane) -> tuple[int, int]:
        notes = sum(1 for kind in lane.kinds if kind in (NOTE, MODULE))
        return notes, sum(1 for kind in lane.kinds if kind in (OP, DOUBLE))

    working = [lane for lane in events.lanes.values() if any(k != FRAME for k in lane.kinds)]
    return max(working, key=weight, default=None)


def watch_host(events: Events, main: Lane | None, spans: Sequence[Span]) -> Host:
    """The main thread, and those that run the backward pass or launch work for it."""
    host = Host(defaultdict(lambda: defaultdict(float)))
    backward = {at for at, name in enumerate(events.names) if _BACKWARD.match(name)}
    helpers = [
        lane
        for lane in events.lanes.values()
        if lane is not main and (CALL in lane.kinds or not backward.isdisjoint(lane.names))
    ]
    walk = _Walk(events, host, spans, backward)
    if main is not None:
        # Before the others: lines of the forward pass must be known in the backward pass.
        walk.run(main, Owner(-1, "host", "python"), join(sorted(_active(helpers))))
    for lane in helpers:
        walk.run(lane, Owner(-1, "host" if backward.isdisjoint(lane.names) else "backward", None))
    host.segments.sort()
    host.calls.sort(key=lambda each: each[1].start)
    host.collectives.sort()
    return host


def _active(lanes: Sequence[Lane]) -> Iterator[Span]:
    """When threads beside the main one do something; it waits for them then."""
    for lane in lanes:
        for at, kind in enumerate(lane.kinds):
            if kind in (OP, DOUBLE, CALL):
                yield lane.starts[at], lane.ends[at]


class _Walk:
    """Through one thread after the other."""

    def __init__(
        self, events: Events, host: Host, spans: Sequence[Span], backward: Container[int]
    ) -> None:
        self._events, self._host, self._spans = events, host, spans
        self._backward = backward
        self._starts = [start for start, _ in spans]
        # The site and the name of a forward operator by sequence number, and these in order.
        self._forward: dict[int, tuple[int, int]] = {}
        self._numbers: list[int] = []
        self._has_modules = any(MODULE in lane.kinds for lane in events.lanes.values())
        self._trains = any(_BACKWARD.match(name) for name in events.names)
        self._calls = [_of_call(name) for name in events.names]
        self._collective = [_COLLECTIVE.match(name) is not None for name in events.names]
        # What a device computes takes the host only its overhead.
        self._small = _MOST_OVERHEAD * _overhead(events) if not events.work else float("inf")
        self._elsewhere: Sequence[Span] = ()
        self._tracked: list[float] = []  # when operators begin that autograd follows

    def run(self, lane: Lane, nothing: Owner, elsewhere: Sequence[Span] = ()) -> None:
        """`nothing` owns what no event covers; `elsewhere` is when other threads work."""
        self._elsewhere = elsewhere
        self._tracked = sorted(
            lane.starts[at]
            for at, link in enumerate(lane.links)
            if link >= 0 and lane.kinds[at] in (OP, DOUBLE)
        )
        starts, ends = lane.starts, lane.ends
        # What begins together: the longer one is outside.
        order = sorted(range(len(lane)), key=lambda at: starts[at] - 1e-9 * (ends[at] - starts[at]))
        stack = [_Open(float("inf"), nothing)]
        now = starts[order[0]] if order else 0.0
        for at in order:
            start, end = starts[at], ends[at]
            # Rounded times overlap a little: what ends before the middle is over.
            while stack[-1].end <= start or stack[-1].end < (start + end) / 2:
                closed = stack.pop()
                self._pass(now, closed.end, closed)
                now = max(now, closed.end)
            top = stack[-1]
            if start > now:
                self._pass(now, start, top)
                now = start
            stack.append(self._open(lane, at, top))
        while len(stack) > 1:
            closed = stack.pop()
            self._pass(now, closed.end, closed)
            now = max(now, closed.end)

    def _open(self, lane: Lane, at: int, top: _Open) -> _Open:
        name, link, site, kind = lane.names[at], lane.links[at], lane.sites[at], lane.kinds[at]
        start, end = lane.starts[at], lane.ends[at]
        opened = _Open(min(end, top.end), top.owner)  # rounded times may stick out
        opened.operator, opened.module, opened.library = top.operator, top.module, top.library
        owner = top.owner
        if kind in (OP, DOUBLE):
            if top.operator < 0:
                owner, opened.operator = self._of_operator(name, link, site, owner)
                self._count(owner, name, top.module, lane, at)
            if self._collective[name]:
                owner = Owner(owner.site, "communication", "collective")
                self._host.collectives.append((start, end, name))
        elif kind == FRAME:
            # Inside an operator it is a hook, or an autograd function of the user's.
            owner, opened.library = Owner(site, owner.phase, owner.doing or "python"), -1
        elif kind == LIBRARY:
            opened.library = name
        elif kind == CALL:
            owner = owner._replace(doing=self._calls[name] or owner.doing)
            launch = Launch(start, end, name, owner, top.operator)
            self._host.calls.append((link, launch))
        else:
            owner = self._of_mark(kind, name, owner, start, end)
            # The mark of a step was made at the line that ended the one before.
            if site >= 0 and not self._events.names[name].startswith("ProfilerStep#"):
                owner = owner._replace(site=site)
            opened.module = name if kind == MODULE else top.module
        opened.owner = owner
        return opened

    def _forward_of(self, link: int) -> tuple[int, int] | None:
        """The site and the name of the operator that made this node of the backward pass.

        One that makes several nodes is seen with the number of its first.
        """
        at = bisect.bisect_right(self._numbers, link) - 1
        return self._forward[self._numbers[at]] if at >= 0 and link >= 0 else None

    def _of_operator(self, name: int, link: int, site: int, owner: Owner) -> tuple[Owner, int]:
        """Whose it is, and its name; of the backward pass, those of its forward operator."""
        phase: Phase = owner.phase
        if name in self._backward or phase == "backward":
            site, name = self._forward_of(link) or (owner.site, name)
            return Owner(site, "backward", "launching"), name
        if site < 0:
            site = owner.site
        if phase == "host" and not self._has_modules and link >= 0:
            phase = "forward"
        if link >= 0:
            if not self._numbers or link > self._numbers[-1]:
                self._numbers.append(link)
            # Operators that make no node have the number of the next one that does.
            self._forward[link] = site, name
        return Owner(site, phase, "loader" if phase == "input" else "launching"), name

    def _of_mark(self, kind: int, name: int, owner: Owner, start: float, end: float) -> Owner:
        text = self._events.names[name]
        if kind == BACKWARD:
            return owner._replace(phase="backward")
        if kind == SAVE:
            return owner._replace(phase="checkpoint")
        if kind == MODULE:
            if owner.phase != "host":
                return owner
            # Without a gradient nothing is trained.
            first = bisect.bisect_left(self._tracked, start)
            trains = first < len(self._tracked) and self._tracked[first] < end
            return owner._replace(phase="forward" if trains or not self._trains else "evaluation")
        if text.startswith("Optimizer."):
            return owner._replace(phase="optimizer")
        if text.startswith("enumerate(DataLoader)"):
            return owner._replace(phase="input", doing="loader")
        if self._collective[name]:
            self._host.collectives.append((start, end, name))
            return owner._replace(phase="communication", doing="collective")
        return owner

    def _count(self, owner: Owner, name: int, module: int, lane: Lane, at: int) -> None:
        if not is_inside(lane.starts[at], self._spans):
            return
        host, key, seconds = self._host, (owner.site, owner.phase), lane.ends[at] - lane.starts[at]
        text = self._events.names[name]
        host.operators[key] += 1
        if seconds <= self._small:
            # Once in each of many modules is no loop.
            host.repeats[(*key, name, module)] += 1
            host.small_seconds[key] += seconds  # type: ignore[assignment]
        host.operator_seconds += seconds
        if owner.phase == "optimizer" and text not in READS | COPIES:
            host.updates.add(name)
        if text in READS:
            host.reads[key] += 1
        elif text in COPIES:
            host.copy_seconds[key] += seconds  # type: ignore[assignment]
        if lane.kinds[at] == DOUBLE:
            host.double_seconds[owner.site] += seconds  # type: ignore[assignment]

    def _pass(self, start: float, end: float, opened: _Open) -> None:
        """So much time goes to the owner, but for what other threads were waited for."""
        owner = opened.owner
        if end <= start or owner.doing is None:
            return
        waits = owner.doing in ("python", "loader")
        if opened.library >= 0 and waits and is_inside(start, self._spans):
            place = owner.site, owner.phase, opened.library
            self._host.libraries[place] += end - start  # type: ignore[assignment]
        if owner.doing == "python" and self._elsewhere:
            for first, last in subtract(start, end, self._elsewhere):
                self._give(first, last, owner)
        else:
            self._give(start, end, owner)

    def _give(self, start: float, end: float, owner: Owner) -> None:
        """Divided among the steps it lies in."""
        segments = self._host.segments
        if segments and segments[-1][1] == start and segments[-1][2] == owner:
            segments[-1] = (segments[-1][0], end, owner)
        else:
            segments.append((start, end, owner))
        step = step_of(self._starts, start)
        while True:
            first, last = self._spans[step] if step >= 0 else (float("-inf"), float("-inf"))
            inside = min(end, last) - max(start, first)
            if inside > 0:
                self._host.seconds[step][owner] += inside
            step += 1
            if step >= len(self._spans) or self._starts[step] >= end:
                return


def _overhead(events: Events) -> float:
    """What an operator takes that computes nothing, here and under this profiler."""
    views = {at for at, name in enumerate(events.names) if name in _VIEWS}
    seconds = [
        lane.ends[at] - lane.starts[at]
        for lane in events.lanes.values()
        for at, name in enumerate(lane.names)
        if name in views
    ]
    return statistics.median(seconds) if seconds else 0.0


def _of_call(name: str) -> Doing | None:
    """What the host does inside this call of the driver; None where it only launches."""
    if SYNCHRONIZES.search(name):
        return "sync"
    if _ALLOCATES.search(name):
        return "allocation"
    return "copy" if _COPIES.search(name) else None
