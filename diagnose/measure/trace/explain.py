"""What does a sequence of events show? `explain` is the one function for whoever has some."""

from __future__ import annotations

import itertools
import statistics
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from diagnose.measure.trace.bounds import find_bounds
from diagnose.measure.trace.device import describe_device, divide_steps, group_kernels
from diagnose.measure.trace.events import Events, Memory
from diagnose.measure.trace.host import Host, Launch, main_lane, watch_host
from diagnose.measure.trace.ranks import Arrivals
from diagnose.measure.trace.spans import Span, is_inside, step_of
from diagnose.measure.trace.steps import Steps, find_steps
from diagnose.measure.trace.stream import Event
from diagnose.measure.trace.suspects import find_growth, find_inside, find_slope, find_suspects
from diagnose.records.script import Growth, Site
from diagnose.records.trace import MemoryUse, RankTrace

_MOST_GROUPS = 200
# Of a line in a step, by its operators' names: that is less sure than counted calls.
_FEWEST_RUNS = 16
# Of the launches of a step, kernels that may be missing: they end after the trace.
_MISSING_SHARE = 0.1
# Rounded times of neighboring steps overlap by less.
_CLOCK_SECONDS = 20e-6
# Of the host, and steps of them that are told whatever they hold.
_MOST_EVENTS, _FEWEST_STEPS = 100_000, 4


class Look(NamedTuple):
    """What one rank's events show, and when it met the others."""

    rank: RankTrace
    arrivals: Arrivals


def explain(events: Iterable[Event], name: str = "") -> RankTrace:
    """Busy, idle by what the host did, kernels by line, and a bound for each cause.

    The events are Chrome's, as torch.profiler writes them: operators, Python frames and calls of
    the driver on the host, kernels, copies and sets on the device, joined by `correlation`. They
    may come from a file (`stream.Stream(path).events()`), from a profiler that has just stopped,
    or from both a profiler and a device's own log (`keep.log_events`): who made them does not
    matter. The steps are `ProfilerStep#` marks, else updates, calls of the model or repetition.

    The result: `steps` (busy, idle and exposed seconds of each), `bounds` (for each cause what
    the steps would take less without that work, by replay of what waits for what, and how long
    the device was seen to idle meanwhile), `kernels` (by operator and line, both passes),
    `suspects` (lines of the host as `script` knows them), `device` (sums of the whole).
    A ValueError where no event says what took how long.
    """
    kept = Events(events)
    if not kept.lanes and not kept.work:
        raise ValueError(f"none of {kept.seen} events says what took how long")
    return look_at(kept, name).rank


def look_at(events: Events, name: str, *, is_cut: bool = False) -> Look:
    main = main_lane(events)
    notes = list(_notes(events))
    steps = find_steps(events, main)
    if not steps.spans:
        steps = Steps([_extent(events)], "the end of the trace")
        notes.append("no steps were found: the whole trace is taken as one")
    whole = _whole_steps(events, steps.spans, is_cut)
    if len(whole) < len(steps.spans):
        events.work = [each for each in events.work if whole and each.start < whole[-1][1]]
        rest = f"{len(whole)} of {len(steps.spans)} steps" if whole else "only the host's side"
        notes.append(f"the device's work of some steps is missing: {rest} can be told")
        steps = steps._replace(spans=whole or steps.spans)
    device, found = describe_device(events), len(steps.spans)
    if (inside := _middle(steps.spans, sum(map(len, events.lanes.values())))) != steps.spans:
        notes.append(f"of {found} steps the {len(inside)} in the middle are told")
        steps = steps._replace(spans=inside)
        events.keep_between(inside[0][0], inside[-1][1])
    host = watch_host(events, main, steps.spans)
    launches = {link: call for link, call in host.calls if link >= 0}
    notes += _clock_notes(events, launches)
    back = max((a[1] - b[0] for a, b in itertools.pairwise(steps.spans)), default=0.0)
    if back > _CLOCK_SECONDS:
        notes.append(f"steps overlap by up to {back * 1e3:.3g} ms: a clock went back")
    if device is None:
        notes += ["no device in the trace: only the host's side is told"] if whole else []
    elif device.unlaunched:
        notes.append(
            f"{device.unlaunched} kernels, copies or sets have no launch in the trace: it began "
            "while they ran, or their launches were not recorded"
        )
    seconds = [end - start for start, end in steps.spans]
    drawn = seconds.index(statistics.median_low(seconds))
    told, pieces = divide_steps(events, host, steps.spans, drawn)
    unknown = Site(name, 0, "")
    suspects = find_suspects(events, host, seconds, unknown)
    loops = {each.site for each in suspects if each.trips >= _FEWEST_RUNS}
    total = sum(host.double_seconds.values())
    worst = max(host.double_seconds, key=host.double_seconds.__getitem__, default=-1)
    rank = RankTrace(
        rank=0,
        file=name,
        boundary=steps.boundary,
        steps=tuple(told),
        device=device,
        host=_sum(host, "doing", len(seconds)),
        phases=_sum(host, "phase", len(seconds)),
        suspects=suspects,
        bounds=tuple(find_bounds(events, host, steps.spans, loops)),
        kernels=tuple(group_kernels(events, launches, steps.spans))[:_MOST_GROUPS],
        picture=tuple(pieces),
        steps_found=found,
        drawn=drawn,
        zero=events.base,
        ticks=1 / events.scale,
        inside=find_inside(events, host, len(seconds)),
        double_share=total / host.operator_seconds if host.operator_seconds else 0.0,
        double_site=events.sites[worst] if worst >= 0 else None,
        update_operators=tuple(sorted(events.names[each] for each in host.updates)),
        growth=find_growth(events, host, seconds) or find_kept(events, host, steps.spans),
        loader_workers=_workers(events),
        memory=describe_memory(events, steps.spans),
        notes=tuple(notes),
    )
    return Look(rank, Arrivals.of(events, host, steps.spans))


def _whole_steps(events: Events, spans: Sequence[Span], is_cut: bool) -> Sequence[Span]:
    """Those whose launches have kernels, and in a cut file those before the cut.

    Profilers write what the host did first, and the device's work last.
    """
    if not events.work:
        return spans
    ran = {each.link for each in events.work}
    launching = {at for at, name in enumerate(events.names) if "LaunchKernel" in name}
    launched, missing = [0] * len(spans), [0] * len(spans)
    starts = [start for start, _ in spans]
    for lane in events.lanes.values():
        for at, name in enumerate(lane.names):
            if name in launching and lane.links[at] >= 0 and is_inside(lane.starts[at], spans):
                step = step_of(starts, lane.starts[at])
                launched[step] += 1
                missing[step] += lane.links[at] not in ran
    last = step_of(starts, max(each.start for each in events.work)) if is_cut else len(spans)
    runs: list[list[Span]] = [[]]
    for step, span in enumerate(spans):
        if missing[step] <= _MISSING_SHARE * launched[step] and step < last:
            runs[-1].append(span)
        elif runs[-1]:
            runs.append([])
    return max(runs, key=len)


def _middle(spans: Sequence[Span], events: int) -> Sequence[Span]:
    """So many steps that they hold about as many events as are looked at one by one."""
    count = max(_FEWEST_STEPS, int(len(spans) * _MOST_EVENTS / max(1, events)))
    if count >= len(spans):
        return spans
    first = (len(spans) - count) // 2
    return spans[first : first + count]


def _extent(events: Events) -> tuple[float, float]:
    starts = [each.start for each in events.work[:1]]
    ends = [max(each.end for each in events.work)] if events.work else []
    for lane in events.lanes.values():
        starts.append(min(lane.starts))
        ends.append(max(lane.ends))
    return min(starts), max(ends)


def _sum(host: Host, what: str, steps: int) -> dict[str, float]:
    sums: Counter[str] = Counter()
    for step, owners in host.seconds.items():
        for owner, seconds in owners.items():
            if step >= 0:
                sums[getattr(owner, what)] += seconds / steps  # type: ignore[assignment]
    return dict(sums.most_common())


def _notes(events: Events) -> Iterator[str]:
    if events.without_duration:
        yield f"{events.without_duration} events without a time or a duration were left out"
    if events.broken_clock:
        yield f"{events.broken_clock} events with impossible times were left out: a clock jumped"


def _clock_notes(events: Events, launches: dict[int, Launch]) -> Iterator[str]:
    early = [
        launch.start - each.start
        for each in events.work
        if (launch := launches.get(each.link)) is not None and each.start < launch.start
    ]
    if early:
        yield (
            f"{len(early)} kernels or copies begin up to {max(early) * 1e6:.1f} µs before their "
            "launch: the clocks of host and device disagree by so much"
        )


def _workers(events: Events) -> int | None:
    """0 where the steps load the data themselves; None where that cannot be seen."""
    loaders = [name for name in events.names if name.startswith("enumerate(DataLoader)")]
    return 0 if loaders and all("SingleProcess" in name for name in loaders) else None


# --- memory ---


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
