"""What could come back if a cause vanished? One replay for each, on a trace with a device."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass

from diagnose.measure.trace.device import site_at
from diagnose.measure.trace.events import COPY, EXCHANGE, Events, Work
from diagnose.measure.trace.host import Host, Launch, Owner
from diagnose.measure.trace.replay import Replay
from diagnose.measure.trace.spans import Span, join, overlap, subtract
from diagnose.records.script import Cause, Site
from diagnose.records.trace import Bound


@dataclass(frozen=True)
class _Question:
    """What is left out, and what that is called."""

    cause: Cause
    what: str
    host: Callable[[Owner, bool], bool] = lambda owner, is_long: False
    device: Callable[[Work], bool] = lambda work: False
    waiting: Callable[[Launch], bool] = lambda call: False


_MODEL = ("forward", "backward")
# Of a step: Python that takes no longer between two operators is what calling them costs.
_LONG_SHARE = 0.05


_QUESTIONS = (
    _Question("input", "waiting for the loader", lambda o, _: o.phase == "input"),
    _Question(
        "transfer",
        "all copies between host and device",
        lambda o, _: o.doing == "copy",
        lambda work: work.kind == COPY,
        lambda call: call.owner.doing == "copy",
    ),
    _Question(
        "sync", "waiting in synchronizing calls", waiting=lambda call: call.owner.doing == "sync"
    ),
    _Question(
        "launch",
        "the host's time in operators and between those of the model (as with CUDA graphs)",
        lambda o, is_long: (
            (o.doing == "launching" and o.phase in (*_MODEL, "host"))
            or (o.doing == "python" and o.phase in _MODEL and not is_long)
        ),
    ),
    _Question(
        "optimizer",
        "the host's time in the update",
        lambda o, _: o.phase == "optimizer" and o.doing in ("launching", "python"),
    ),
    _Question(
        "host",
        "Python outside of the model and long pauses in it",
        lambda o, is_long: (
            (o.doing == "python" and (o.phase == "host" or (o.phase in _MODEL and is_long)))
            or o.phase in ("checkpoint", "logging")
        ),
    ),
    _Question("allocation", "calls that allocate or free", lambda o, _: o.doing == "allocation"),
    _Question("evaluation", "evaluation of the model", lambda o, _: o.phase == "evaluation"),
    _Question(
        "communication",
        "all exchanges between ranks",
        lambda o, _: o.doing == "collective",
        lambda work: work.kind == EXCHANGE,
    ),
)


def find_bounds(
    events: Events, host: Host, spans: Sequence[Span], loops: Container[Site]
) -> Iterator[Bound]:
    """Per step. A cause of which there is nothing has no bound.

    `loops` are lines that run many times in a step: done at once, their kernels become one.
    """
    if not events.work or not spans:
        return
    replay = Replay(events, host, spans)
    first, last = spans[0][0], spans[-1][1]
    idle = list(subtract(first, last, join([(each.start, each.end) for each in events.work])))
    looped = {link for link, call in host.calls if site_at(events, call.owner.site) in loops} - {-1}
    longest = _LONG_SHARE * (last - first) / len(spans)
    for each in _QUESTIONS:
        parts = [
            (a, b, owner) for a, b, owner in host.segments if each.host(owner, b - a > longest)
        ]
        removed = [(start, end) for start, end, _ in parts]
        waiting = [call for _, call in host.calls if each.waiting(call)]
        works = any(each.device(work) for work in events.work)
        left_out = looped if each.cause == "launch" else ()
        if not removed and not waiting and not works:
            continue
        seconds = replay.bound(
            removed,
            lambda work, ask=each, out=left_out: (  # type: ignore[misc]
                not ask.device(work) and work.link not in out
            ),
            lambda call, ask=each: not ask.waiting(call),  # type: ignore[misc]
        )
        site = _busiest(events, parts, waiting)
        seen = overlap(idle, join(removed))
        what = f"{each.what} and without the kernels of loops" if left_out else each.what
        yield Bound(each.cause, site, seconds / len(spans), what, seen / len(spans))


def _busiest(
    events: Events, parts: Sequence[tuple[float, float, Owner]], waiting: Sequence[Launch]
) -> Site | None:
    """The line to which most of what is left out belongs."""
    shares: Counter[int] = Counter()
    for start, end, owner in parts:
        shares[owner.site] += end - start  # type: ignore[assignment]
    for call in waiting:
        shares[call.owner.site] += call.end - call.start  # type: ignore[assignment]
    known = {site: seconds for site, seconds in shares.items() if site >= 0}
    return site_at(events, max(known, key=known.__getitem__)) if known else None
