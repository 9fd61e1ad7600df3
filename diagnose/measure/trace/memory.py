"""How much memory do the steps take, and whose does not come back?"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence

from diagnose.measure.trace.events import Events, Memory
from diagnose.measure.trace.host import Host
from diagnose.measure.trace.spans import Span
from diagnose.measure.trace.suspects import find_slope
from diagnose.records.script import Growth
from diagnose.records.trace import MemoryUse


def describe_memory(events: Events, spans: Sequence[Span]) -> MemoryUse | None:
    """Of the device, where the trace tells it; else of the host. None without such events."""
    memory = _told(events)
    inside = range(bisect_left(memory.times, spans[0][0]), bisect_left(memory.times, spans[-1][1]))
    if not inside:
        return None
    left = [memory.totals[bisect_left(memory.times, end) - 1] for _, end in spans]
    slope = find_slope(left)
    return MemoryUse(
        on_device=memory is events.memory[True],
        events=len(inside) / len(spans),
        allocated_bytes=sum(max(0, memory.changes[at]) for at in inside) / len(spans),
        peak_bytes=max(memory.totals[at] for at in inside),
        growth_bytes=slope[0] if slope is not None and slope[1] > 0 else 0.0,
    )


def _told(events: Events) -> Memory:
    return events.memory[len(events.memory[True].times) > 0]


def find_kept(events: Events, host: Host, spans: Sequence[Span]) -> Growth | None:
    """The function whose tensors become more from step to step, where one's do."""
    rows: dict[int, list[int]] = {}
    for step, alive in enumerate(_alive(_told(events), host, spans)):
        for site, nbytes in alive.items():
            rows.setdefault(site, [0] * len(spans))[step] = nbytes
    slopes = {site: found for site, row in rows.items() if (found := find_slope(row)) is not None}
    growing = {site: found[0] for site, found in slopes.items() if found[1] > 0 and site >= 0}
    if not growing:
        return None
    worst = max(growing, key=growing.__getitem__)
    where = events.sites[worst]
    what = f"what {where.function} allocates and keeps"
    return Growth(where, what, True, 0.0, 0.0, 0.0, bytes_per_step=growing[worst])


def _alive(memory: Memory, host: Host, spans: Sequence[Span]) -> Iterator[Counter[int]]:
    """At the end of each step: bytes by the line that allocated them."""
    alive: Counter[int] = Counter()
    owners: dict[int, tuple[int, int]] = {}
    starts = [start for start, _, _ in host.segments]
    begin = bisect_left(memory.times, spans[0][0])
    for _, end in spans:
        until = bisect_left(memory.times, end)
        for at in range(begin, until):
            address, nbytes = memory.addresses[at], memory.changes[at]
            if nbytes > 0:
                place = bisect_right(starts, memory.times[at]) - 1
                owners[address] = (host.segments[place][2].site if place >= 0 else -1), nbytes
                alive[owners[address][0]] += nbytes
            elif address in owners:
                site, held = owners.pop(address)
                alive[site] -= held
        begin = max(begin, until)
        yield alive.copy()
