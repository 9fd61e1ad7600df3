"""When was the device busy, and what did the host do while it was not?

Busy is the union of all kernels, copies and sets on all streams. One walk over the edges of
everything that host and device did sorts each moment.
"""

from __future__ import annotations

import bisect
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from diagnose.measure.trace.events import COMPUTE, COPY, EXCHANGE, SET, Events, Work
from diagnose.measure.trace.host import Host, Launch
from diagnose.measure.trace.spans import Span, is_inside, join, length, step_of
from diagnose.records.script import Site
from diagnose.records.trace import DOINGS, UNRECORDED, Device, KernelGroup, Piece, Step

# An eye sees no more of them in one line.
_MOST_PIECES = 600
_KINDS = ("compute", "communication", "copy to or from the host", "set")
# A copy or an exchange beside a kernel is hidden, so the kernel is told.
_BY_WEIGHT = (COMPUTE, SET, COPY, EXCHANGE)
# Names of kernels that multiply on tensor (NVIDIA) or matrix (AMD) cores; of those that multiply.
_TENSOR_CORES = re.compile(
    r"[sh]\d*(884|1688|16816|16832|64x\d+x16)|tensorop|hmma|wgmma|gmma|xmma|nvjet|flash|fmha|mfma|"
    r"wmma|MT\d+x\d+x\d+_MI",
    re.IGNORECASE,
)
_PRODUCTS = re.compile(r"gemm|gemv|conv|cudnn.*(fprop|dgrad|wgrad)|Cijk", re.IGNORECASE)
_GRAPH_LAUNCH = re.compile(r"GraphLaunch")


def _union(work: Sequence[Work], *kinds: int) -> float:
    return length(join([(each.start, each.end) for each in work if each.kind in kinds]))


def describe_device(events: Events) -> Device | None:
    work = events.work
    if not work:
        return None
    kernels = [each for each in work if each.kind in (COMPUTE, EXCHANGE)]
    launches = events.launches()
    launched = [each for each in work if each.link in launches]
    busy, computing = _union(work, COMPUTE, EXCHANGE, COPY, SET), _union(work, COMPUTE, SET)
    with_copies = _union(work, COMPUTE, SET, COPY)
    tensor = [_TENSOR_CORES.search(name) is not None for name in events.names]
    product = [_PRODUCTS.search(name) is not None for name in events.names]
    graphs = {at for at, name in enumerate(events.names) if _GRAPH_LAUNCH.search(name)}
    return Device(
        seconds=max(each.end for each in work) - work[0].start,
        busy=busy,
        computing=computing,
        exposed_copy=with_copies - computing,
        exposed_communication=busy - with_copies,
        kernels=len(kernels),
        kernel_seconds=sum(each.end - each.start for each in kernels),
        tensor_core_seconds=sum(e.end - e.start for e in kernels if tensor[e.name]),
        plain_product_seconds=sum(
            e.end - e.start for e in kernels if product[e.name] and not tensor[e.name]
        ),
        queue_length=_queue_length(kernels, launches),
        graph_launches=sum(
            1 for lane in events.lanes.values() for name in lane.names if name in graphs
        ),
        unlaunched=len(work) - len(launched),
        launched_seconds=max((e.end for e in launched), default=0.0) - launched[0].start
        if launched
        else 0.0,
        launched_busy=_union(launched, COMPUTE, EXCHANGE, COPY, SET),
        launched_computing=_union(launched, COMPUTE, SET),
    )


def _queue_length(kernels: Sequence[Work], launches: Mapping[int, float]) -> float:
    """Kernels that were launched and not begun, on average, when one begins."""
    known = [each for each in kernels if each.link in launches]
    given = sorted(launches[each.link] for each in known)
    waiting = [
        max(0, bisect.bisect_right(given, each.start) - begun)
        for begun, each in enumerate(known, start=1)
    ]
    return sum(waiting) / len(waiting) if waiting else 0.0


def group_kernels(
    events: Events, launches: Mapping[int, Launch], spans: Sequence[Span]
) -> Iterator[KernelGroup]:
    """By operator and line, both passes together, the largest first."""
    count = len(spans) or 1
    groups: dict[tuple[str, int], list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])
    for each in events.work:
        launch = launches.get(each.link)
        if launch is None or (spans and not is_inside(launch.start, spans)):
            continue
        operator = events.names[launch.operator if launch.operator >= 0 else each.name]
        group = groups[operator, launch.owner.site]
        group[0] += 1 / count
        group[2 if launch.owner.phase == "backward" else 1] += (each.end - each.start) / count
    for (operator, site), (kernels, forward, backward) in sorted(
        groups.items(), key=lambda item: -item[1][1] - item[1][2]
    ):
        name = operator.removeprefix("autograd::engine::evaluate_function: ")
        yield KernelGroup(name, site_at(events, site), kernels, forward, backward)


def site_at(events: Events, number: int) -> Site | None:
    return events.sites[number] if number >= 0 else None


def divide_steps(
    events: Events, host: Host, spans: Sequence[Span], drawn: int
) -> tuple[list[Step], list[Piece]]:
    """Every step sorted by what went on, and one of them as a picture."""
    sums: list[defaultdict[str, float]] = [defaultdict(float) for _ in spans]
    pieces: list[Piece] = []
    for step, start, end, device, doing in _moments(events, host, spans):
        seconds, into = end - start, sums[step]
        into[_KINDS[device] if device is not None else doing] += seconds
        if step == drawn:
            first = spans[drawn][0]
            pieces.append(Piece("host", doing, start - first, end - first))
            if events.work:
                kind = _KINDS[device] if device is not None else doing
                pieces.append(Piece("device", kind, start - first, end - first))
    starts, counts = [start for start, _ in spans], [0] * len(spans)
    for each in events.work:
        if each.kind in (COMPUTE, EXCHANGE) and is_inside(each.start, spans):
            counts[step_of(starts, each.start)] += 1
    steps = [
        Step(
            seconds=end - start,
            start=start,
            busy=sum(each[kind] for kind in _KINDS),
            idle={name: each[name] for name in (*DOINGS, UNRECORDED) if each[name]}
            if events.work
            else None,
            exposed_copy=each["copy to or from the host"],
            exposed_communication=each["communication"],
            kernels=kernels,
        )
        for (start, end), each, kernels in zip(spans, sums, counts, strict=True)
    ]
    return steps, _draw(pieces)


def _moments(
    events: Events, host: Host, spans: Sequence[Span]
) -> Iterator[tuple[int, float, float, int | None, str]]:
    """Step, start and end, the work of the device that matters most, and what the host did."""
    edges: list[tuple[float, int, int]] = []
    for each in events.work:
        edges += ((each.start, each.kind, 1), (each.end, each.kind, -1))
    base = len(_KINDS)
    places = {doing: base + at for at, doing in enumerate(DOINGS)}
    for start, end, owner in host.segments:
        if owner.doing is not None:
            edges += ((start, places[owner.doing], 1), (end, places[owner.doing], -1))
    # The edge of a step changes nothing that goes on.
    edges += [(at, 0, 0) for span in spans for at in span]
    edges.sort()
    active = [0] * (base + len(DOINGS))
    step, before = 0, edges[0][0] if edges else 0.0
    for at, place, change in edges:
        if at > before:
            while step < len(spans) and spans[step][1] <= before:
                step += 1
            if step < len(spans) and spans[step][0] <= before:
                device = next((kind for kind in _BY_WEIGHT if active[kind]), None)
                doing = next((d for d in DOINGS if active[places[d]]), UNRECORDED)
                yield step, before, at, device, doing
            before = at
        active[place] += change


def _draw(pieces: Sequence[Piece]) -> list[Piece]:
    """Neighbours of one kind as one; where they are too many, what fills most of each part."""
    drawn: list[Piece] = []
    for lane in ("host", "device"):
        mine = _join_pieces([each for each in pieces if each.lane == lane])
        if len(mine) > _MOST_PIECES:
            mine = _join_pieces(_bin(mine))
        drawn += mine
    return drawn


def _join_pieces(pieces: Sequence[Piece]) -> list[Piece]:
    joined: list[Piece] = []
    for each in pieces:
        if joined and joined[-1].kind == each.kind:
            joined[-1] = replace(joined[-1], end=each.end)
        else:
            joined.append(each)
    return joined


def _bin(pieces: Sequence[Piece]) -> list[Piece]:
    width = pieces[-1].end / _MOST_PIECES
    bins: list[defaultdict[str, float]] = [defaultdict(float) for _ in range(_MOST_PIECES)]
    for each in pieces:
        at = each.start
        while at < each.end:
            number = min(_MOST_PIECES - 1, int(at / width + 1e-9))
            until = min(each.end, (number + 1) * width) if number < _MOST_PIECES - 1 else each.end
            bins[number][each.kind] += until - at
            at = max(until, at + width * 1e-9)
    return [
        Piece(pieces[0].lane, max(held, key=held.__getitem__), at * width, (at + 1) * width)
        for at, held in enumerate(bins)
        if held
    ]
