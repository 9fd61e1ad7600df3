"""How do files become a record? Each file is a rank; ranks of one run are laid over each other."""

from __future__ import annotations

import contextlib
import gc
import re
import statistics
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from diagnose.measure.session import CouldNotOpen, Refused
from diagnose.measure.trace.bounds import find_bounds
from diagnose.measure.trace.device import describe_device, divide_steps, group_kernels
from diagnose.measure.trace.events import Events
from diagnose.measure.trace.host import Host, Launch, main_lane, watch_host
from diagnose.measure.trace.ranks import Arrivals, align
from diagnose.measure.trace.spans import Span
from diagnose.measure.trace.steps import Steps, find_steps
from diagnose.measure.trace.stream import Stream
from diagnose.measure.trace.suspects import find_growth, find_suspects
from diagnose.records.header import Fact, Header, Machine, Reading
from diagnose.records.script import Site
from diagnose.records.trace import RankTrace, TraceRecord

_ENDINGS = (".json", ".json.gz")
_RANK = re.compile(r"rank[-_]?(\d+)", re.IGNORECASE)
_MOST_GROUPS = 200
# Of the host, and steps of them that are told whatever they hold.
_MOST_EVENTS, _FEWEST_STEPS = 100_000, 4
_NOT_SAID = "a trace does not say"


def find_files(paths: Sequence[Path]) -> list[Path]:
    """The files themselves, and all traces in the folders."""
    found: list[Path] = []
    for path in paths:
        if path.is_dir():
            inside = sorted(each for each in path.iterdir() if each.name.endswith(_ENDINGS))
            if not inside:
                raise Refused(f"{path} holds no trace: no file ends with {' or '.join(_ENDINGS)}")
            found += inside
        elif path.exists():
            found.append(path)
        else:
            raise Refused(f"there is no file {path}")
    return found


def read_traces(paths: Sequence[Path], label: str) -> TraceRecord:
    files = find_files(paths)
    with _without_collector():
        return _read_all(files, label)


@contextlib.contextmanager
def _without_collector() -> Iterator[None]:
    """Millions of events are made and dropped, and none refers to another."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _read_all(files: Sequence[Path], label: str) -> TraceRecord:
    heads: list[dict[str, Any]] = []
    ranks: list[RankTrace] = []
    arrivals: list[Arrivals] = []
    for path in files:
        stream = Stream(path)
        rank, arrived = _read(stream, Events(stream.events()), len(ranks))
        heads.append(stream.head)
        ranks.append(rank)
        arrivals.append(arrived)
    ranks = _number(ranks, heads)
    ordered = sorted(range(len(ranks)), key=lambda at: ranks[at].rank)
    aligned = align([ranks[at] for at in ordered], [arrivals[at] for at in ordered])
    return TraceRecord(
        header=_header(label, heads[ordered[0]], aligned[0]),
        script=_script(aligned),
        ranks=tuple(aligned),
    )


def _read(stream: Stream, events: Events, place: int) -> tuple[RankTrace, Arrivals]:
    if not events.lanes and not events.work:
        why = stream.damage or f"none of its {events.seen} events says what took how long"
        raise CouldNotOpen(f"{stream.path}: {why}")
    main = main_lane(events)
    notes = list(_notes(stream, events))
    steps = find_steps(events, main)
    if not steps.spans:
        steps = Steps([_extent(events)], "the end of the trace")
        notes.append("no steps were found: the whole trace is taken as one")
    device = describe_device(events)
    if (inside := _middle(steps.spans, sum(map(len, events.lanes.values())))) != steps.spans:
        notes.append(f"of {len(steps.spans)} steps the {len(inside)} in the middle are told")
        steps = steps._replace(spans=inside)
        events.keep_between(inside[0][0], inside[-1][1])
    host = watch_host(events, main, steps.spans)
    launches = {link: call for link, call in host.calls if link >= 0}
    notes += _clock_notes(events, launches)
    if device is None:
        notes.append("no device in the trace: only the host's side is told")
    elif device.unlaunched:
        notes.append(
            f"{device.unlaunched} kernels, copies or sets have no launch in the trace: it began "
            "while they ran, or their launches were not recorded"
        )
    seconds = [end - start for start, end in steps.spans]
    drawn = seconds.index(statistics.median_low(seconds))
    told, pieces = divide_steps(events, host, steps.spans, drawn)
    unknown = Site(stream.path.name, 0, "")
    suspects = find_suspects(events, host, seconds, unknown)
    total = sum(host.double_seconds.values())
    worst = max(host.double_seconds, key=host.double_seconds.__getitem__, default=-1)
    memory = [each for each in events.memory if steps.spans[0][0] <= each.at < steps.spans[-1][1]]
    rank = RankTrace(
        rank=place,
        file=stream.path.name,
        boundary=steps.boundary,
        steps=tuple(told),
        device=device,
        host=_sum(host, "doing", len(seconds)),
        phases=_sum(host, "phase", len(seconds)),
        suspects=suspects,
        bounds=tuple(find_bounds(events, host, steps.spans)),
        kernels=tuple(group_kernels(events, launches, steps.spans))[:_MOST_GROUPS],
        picture=tuple(pieces),
        drawn_at=events.base + steps.spans[drawn][0] / events.scale,
        ticks=1 / events.scale,
        double_share=total / host.operator_seconds if host.operator_seconds else 0.0,
        double_site=events.sites[worst] if worst >= 0 else None,
        growth=find_growth(events, host, seconds),
        loader_workers=_workers(events),
        memory_events=len(memory) / len(seconds),
        allocated_bytes=sum(max(0, each.nbytes) for each in memory) / len(seconds),
        peak_bytes=max((each.total for each in events.memory), default=0),
        notes=tuple(notes),
    )
    return rank, Arrivals.of(events, host, steps.spans)


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


def _notes(stream: Stream, events: Events) -> Iterator[str]:
    if stream.damage:
        yield f"{stream.path.name} is not whole ({stream.damage}); {events.seen} events were read"
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


def _number(ranks: Sequence[RankTrace], heads: Sequence[dict[str, Any]]) -> list[RankTrace]:
    """Each with its own rank. A Refused where they cannot be the ranks of one run."""
    if len(ranks) == 1:
        info = heads[0].get("distributedInfo") or {}
        own = info.get("rank") if isinstance(info, dict) else None
        return [replace(ranks[0], rank=own if isinstance(own, int) else 0)]
    numbers, worlds = [], set()
    for rank, head in zip(ranks, heads, strict=True):
        info = head.get("distributedInfo")
        info = info if isinstance(info, dict) else {}
        found = _RANK.search(rank.file)
        number = info.get("rank", int(found.group(1)) if found else None)
        if not isinstance(number, int):
            raise Refused(
                f"{rank.file} does not say which rank it is, so these {len(ranks)} files cannot "
                "be laid over each other: name one file, or the ranks of one run"
            )
        numbers.append(number)
        worlds.add(info.get("world_size"))
    twice = [number for number, times in Counter(numbers).items() if times > 1]
    if twice or len(worlds) > 1:
        why = f"rank {twice[0]} comes twice" if twice else "their numbers of ranks differ"
        raise Refused(f"these {len(ranks)} files are not of one run: {why}; name those of one run")
    return [replace(rank, rank=number) for rank, number in zip(ranks, numbers, strict=True)]


def _script(ranks: Sequence[RankTrace]) -> str:
    """The file whose lines take the most time."""
    seconds: Counter[str] = Counter()
    for rank in ranks:
        for each in rank.suspects:
            if each.site.line:
                seconds[each.site.file] += each.seconds  # type: ignore[assignment]
    return seconds.most_common(1)[0][0] if seconds else ranks[0].file


def _header(label: str, head: dict[str, Any], rank: RankTrace) -> Header:
    devices = head.get("deviceProperties")
    names = [each.get("name") for each in devices or () if isinstance(each, dict)]
    device = "cpu" if rank.device is None else "accelerator"
    name = str(names[0]) if names and rank.device is not None else device
    unknown, unread = Fact(None, _NOT_SAID), Reading(None, _NOT_SAID)
    version = head.get("cuda_runtime_version")
    machine = Machine(
        device=device,
        device_name=name,
        system=_NOT_SAID,
        cpu_model=unknown,
        cpu_cores=None,
        cpu_governor=unknown,
        memory_bytes=unread,
        shared_memory_bytes=unread,
        cpu_busy_before=unread,
        wsl2=False,
        container=unknown,
        versions={"cuda": Fact(str(version))} if version else {},
        threads=None,
        git_commit=unknown,
        environment={},
        gpus_reason=_NOT_SAID,
    )
    created = datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
    return Header(label, created, "hardware", "full", machine)
