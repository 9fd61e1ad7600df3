"""How do files become a record? Each file is a rank; ranks of one run are laid over each other."""

from __future__ import annotations

import contextlib
import gc
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, NamedTuple

from diagnose.measure.session import CouldNotOpen, Refused
from diagnose.measure.trace.events import Events
from diagnose.measure.trace.explain import look_at
from diagnose.measure.trace.ranks import Arrivals, align
from diagnose.measure.trace.stream import Stream
from diagnose.records.header import Fact, Header, Machine, Reading, Source
from diagnose.records.trace import RankTrace, TraceRecord

_ENDINGS = (".json", ".json.gz")
_RANK = re.compile(r"rank[-_]?(\d+)", re.IGNORECASE)
# Clocks of hosts differ by seconds; ranks that trace the same steps begin together.
_MOST_APART_SECONDS = 600.0
_NOT_SAID = "a trace does not say"


def find_files(paths: Sequence[Path]) -> list[Path]:
    """The files themselves, and all traces in the folders."""
    found: list[Path] = []
    for path in paths:
        if path.is_dir():
            inside = sorted(each for each in path.iterdir() if each.name.endswith(_ENDINGS))
            if not inside:
                raise Refused(
                    f"{path} holds no trace: no file in it ends with {' or '.join(_ENDINGS)} "
                    "(folders inside it are not searched)"
                )
            found += inside
        elif path.exists():
            found.append(path)
        else:
            raise Refused(f"there is no file {path}")
    return found


def read_traces(paths: Sequence[Path], label: str) -> TraceRecord:
    files = find_files(paths)
    with _without_collector():
        return _read_all(files, paths, label)


@contextlib.contextmanager
def _without_collector() -> Iterator[None]:
    """Millions of events are made and dropped, and none refers to another."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _read_all(files: Sequence[Path], named: Sequence[Path], label: str) -> TraceRecord:
    traces: list[_Trace] = []
    notes: list[str] = []
    for path in files:
        try:
            traces.append(_read(path))
        except Refused as error:
            # Beside the traces of a folder may lie whatever else a job writes.
            if path in named or (path == files[-1] and not traces):
                raise
            notes.append(f"{path.name} was left out: {error}")
    traces.sort(key=lambda each: each.rank.rank)
    if len(traces) > 1:
        _refuse_other_runs(traces)
    elif traces[0].rank.rank < 0:
        traces = [traces[0]._replace(rank=replace(traces[0].rank, rank=0))]
    aligned = align([each.rank for each in traces], [each.arrivals for each in traces])
    return TraceRecord(
        header=_header(label, traces[0].head, aligned[0]),
        script=_script(aligned),
        ranks=tuple(aligned),
        notes=tuple(notes),
    )


class _Trace(NamedTuple):
    """One file; its rank is -1 where nothing says which it is."""

    rank: RankTrace
    arrivals: Arrivals
    head: dict[str, Any]


def _read(path: Path) -> _Trace:
    stream = Stream(path)
    events = Events(stream.events())
    if not events.lanes and not events.work:
        why = stream.damage or f"none of its {events.seen} events says what took how long"
        raise CouldNotOpen(f"{path}: {why}: name a trace that torch.profiler exported")
    look, head = look_at(events, path.name, is_cut=bool(stream.damage)), stream.head
    notes = look.rank.notes
    if stream.damage:
        damage = f"{path.name} is not whole ({stream.damage}); {events.seen} events were read"
        notes = (damage, *notes)
    info = head.get("distributedInfo")
    number = info.get("rank") if isinstance(info, dict) else None
    if not isinstance(number, int):
        found = _RANK.search(path.name)
        number = int(found.group(1)) if found else -1
    zero = head.get("baseTimeNanoseconds")
    began = events.base * events.scale + (zero / 1e9 if isinstance(zero, int) else 0.0)
    arrivals = replace(look.arrivals, zero=began)
    return _Trace(replace(look.rank, rank=number, notes=notes), arrivals, head)


def _refuse_other_runs(traces: Sequence[_Trace]) -> None:
    unnamed = next((each.rank.file for each in traces if each.rank.rank < 0), None)
    if unnamed is not None:
        raise Refused(
            f"{unnamed} does not say which rank it is, so these {len(traces)} files cannot be "
            "laid over each other: name one file, or the ranks of one run"
        )
    why = ""
    numbers = [each.rank.rank for each in traces]
    twice = [number for number, times in Counter(numbers).items() if times > 1]
    infos = [each.head.get("distributedInfo") for each in traces]
    worlds = {info.get("world_size") for info in infos if isinstance(info, dict)}
    meetings = [len(each.arrivals.collectives) for each in traces]
    begins = [each.arrivals.zero for each in traces]
    apart = max(begins) - min(begins)
    if twice:
        why = f"rank {twice[0]} comes twice"
    elif len(worlds) > 1:
        why = "their numbers of ranks differ"
    elif 0 in meetings and any(meetings):
        why = f"{traces[meetings.index(0)].rank.file} has no collectives, and others have"
    elif apart > _MOST_APART_SECONDS:
        why = f"they were recorded {apart / 60:.0f} minutes apart"
    if why:
        raise Refused(f"these {len(traces)} files are not of one run: {why}; name those of one run")


def _script(ranks: Sequence[RankTrace]) -> str:
    """The file whose lines take the most time."""
    seconds: Counter[str] = Counter()
    for rank in ranks:
        for each in rank.suspects:
            if each.site.line:
                seconds[each.site.file] += each.seconds  # type: ignore[assignment]
    return Path(seconds.most_common(1)[0][0]).name if seconds else ranks[0].file


def _header(label: str, head: dict[str, Any], rank: RankTrace) -> Header:
    devices = head.get("deviceProperties")
    devices = [each for each in devices or () if isinstance(each, dict)]
    names = [each.get("name") for each in devices]
    source: Source = "fake device" if any(each.get("simulated") for each in devices) else "hardware"
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
    return Header(label, created, source, "full", machine)
