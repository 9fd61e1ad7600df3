"""What could come back if a cause vanished? One replay for each, on a trace with a device."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from diagnose.measure.trace.device import site_at
from diagnose.measure.trace.events import COPY, EXCHANGE, Events, Work
from diagnose.measure.trace.host import Host, Launch, Owner
from diagnose.measure.trace.replay import Replay
from diagnose.measure.trace.spans import Span
from diagnose.records.script import Cause, Site
from diagnose.records.trace import Bound


@dataclass(frozen=True)
class _Question:
    """What is left out, and what that is called."""

    cause: Cause
    what: str
    host: Callable[[Owner], bool] = lambda owner: False
    device: Callable[[Work], bool] = lambda work: False
    waiting: Callable[[Launch], bool] = lambda call: False


def _computes(owner: Owner) -> bool:
    return owner.phase not in ("input", "checkpoint", "evaluation", "communication")


_QUESTIONS = (
    _Question("input", "waiting for the loader", lambda o: o.phase == "input"),
    _Question(
        "transfer",
        "all copies between host and device",
        lambda o: o.doing == "copy",
        lambda work: work.kind == COPY,
        lambda call: call.owner.doing == "copy",
    ),
    _Question(
        "sync", "waiting in synchronizing calls", waiting=lambda call: call.owner.doing == "sync"
    ),
    _Question(
        "launch",
        "the host's time in operators and launches, as with CUDA graphs",
        lambda o: o.doing == "launching" and _computes(o) and o.phase != "optimizer",
    ),
    _Question(
        "optimizer",
        "the host's time in the update",
        lambda o: o.phase == "optimizer" and o.doing in ("launching", "python"),
    ),
    _Question(
        "host",
        "Python between the operators",
        lambda o: (
            (o.doing == "python" and o.phase in ("host", "forward", "backward"))
            or o.phase == "checkpoint"
        ),
    ),
    _Question("allocation", "calls that allocate or free", lambda o: o.doing == "allocation"),
    _Question("evaluation", "evaluation of the model", lambda o: o.phase == "evaluation"),
    _Question(
        "communication",
        "all exchanges between ranks",
        lambda o: o.doing == "collective",
        lambda work: work.kind == EXCHANGE,
    ),
)


def find_bounds(events: Events, host: Host, spans: Sequence[Span]) -> Iterator[Bound]:
    """Per step. A cause of which there is nothing has no bound."""
    if not events.work or not spans:
        return
    replay = Replay(events, host, spans)
    for each in _QUESTIONS:
        removed = [(a, b) for a, b, owner in host.segments if each.host(owner)]
        waiting = [call for _, call in host.calls if each.waiting(call)]
        works = any(each.device(work) for work in events.work)
        if not removed and not waiting and not works:
            continue
        seconds = replay.bound(
            removed,
            lambda work, ask=each: not ask.device(work),  # type: ignore[misc]
            lambda call, ask=each: not ask.waiting(call),  # type: ignore[misc]
        )
        site = _busiest(events, host, each, waiting)
        yield Bound(each.cause, site, seconds / len(spans), each.what)


def _busiest(
    events: Events, host: Host, asked: _Question, waiting: Sequence[Launch]
) -> Site | None:
    """The line to which most of what is left out belongs."""
    shares: Counter[int] = Counter()
    for start, end, owner in host.segments:
        if asked.host(owner):
            shares[owner.site] += end - start  # type: ignore[assignment]
    for call in waiting:
        shares[call.owner.site] += call.end - call.start  # type: ignore[assignment]
    known = {site: seconds for site, seconds in shares.items() if site >= 0}
    return site_at(events, max(known, key=known.__getitem__)) if known else None
