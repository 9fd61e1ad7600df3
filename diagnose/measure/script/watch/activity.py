"""What does the device do in a few steps of the script, and for which lines?

A profiler writes down what was launched when, and when the device did it; a device that keeps a
log of its own is read from that (see measure/trace/keep.py). The events answer two questions. Steps
that run as ever tell how long the device works, what the host does while it does not, and what
could come back. A mapped step tells whose kernels they are: its operators run one by one, so a
kernel belongs to the operator in whose time it was launched.
"""

from __future__ import annotations

import bisect
import gc
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from torch.profiler import profile

from diagnose.measure.lines.launches import Operator
from diagnose.measure.machine.device import Device
from diagnose.measure.script.patches import Patches
from diagnose.measure.script.watch.seen import Instruments, Seen
from diagnose.measure.script.watch.where import Sources
from diagnose.measure.script.watch.work import StepWork
from diagnose.measure.trace.events import COMPUTE, EXCHANGE, Events
from diagnose.measure.trace.explain import look_at
from diagnose.measure.trace.host import main_lane
from diagnose.measure.trace.keep import kept_trace
from diagnose.measure.trace.spans import is_inside, join, length
from diagnose.measure.trace.steps import find_steps
from diagnose.measure.trace.stream import Stream
from diagnose.records.script import Activity, DeviceLine

# The first is not told: the profiler itself is still warming up.
RECORDED_STEPS = 6
_FIRST_STEP = "ProfilerStep#0"
MOST_LINES = 20
# To a step: what is written in this time takes many times as long to read.
MOST_ADDED_SECONDS = 0.1
# The clocks of host and profiler are compared once, which is no more exact than this.
_CLOCK_ERROR_SECONDS = 20e-6


class Recording:
    """The events between its beginning and its end, in a file that is kept if it has a name."""

    def __init__(self, path: str = "", *, lines: bool = True, memory: bool = False) -> None:
        self._folder = None if path else tempfile.TemporaryDirectory(prefix="diagnose-")
        self._path = Path(self._folder.name, "events.json") if self._folder else Path(path)
        self.is_wanted = True
        self._trace = kept_trace(
            self._path, lines=lines, memory=memory, wanted=lambda: self.is_wanted
        )
        # A profiler counts from a moment of the wall clock.
        self._between = time.time_ns() - time.monotonic_ns()

    @classmethod
    def of_step(cls, device: Device, patches: Patches) -> Recording | None:
        """Until the patches are undone; of a device only."""
        if device.is_cpu:
            return None
        recording = cls(lines=False)
        patches.enter(recording)
        return recording

    def __enter__(self) -> profile:
        return self._trace.__enter__()

    def __exit__(self, *error: Any) -> None:
        self._trace.__exit__(*error)

    def read(self) -> tuple[Events, float]:
        """And the moment of their zero, by time.monotonic()."""
        stream = Stream(self._path)
        collects = gc.isenabled()
        gc.disable()  # many events are made and dropped, and none refers to another
        try:
            events = Events(each for each in stream.events() if each.get("name") != _FIRST_STEP)
        finally:
            if collects:
                gc.enable()
        base = stream.head.get("baseTimeNanoseconds", 0)
        return events, (base - self._between) * 1e-9 + events.base * events.scale

    def forget(self) -> None:
        if self._folder is not None:
            self._folder.cleanup()


def record_steps(
    watch: Instruments, seen: Seen, patches: Patches, path: str, ranks: int
) -> Iterator[None]:
    """Some steps as they run, for the verdict; with a path also for `diagnose trace`.

    A step that calls Python a hundred thousand times makes as many events, which take minutes to
    write and to read: then only its operators are recorded. Ranks must record the same steps.
    """
    for lines in (True, False):
        recording = Recording(path, lines=lines, memory=bool(path))
        with patches.part() as tracing:
            profiler = tracing.enter(recording)
            for step in range(RECORDED_STEPS):
                began = time.perf_counter()
                yield
                profiler.step()
                added = time.perf_counter() - began - seen.typical_seconds
                # The first one starts the profiler.
                drags = step > 0 and added > MOST_ADDED_SECONDS
                if lines and drags and ranks == 1 and not path:
                    recording.is_wanted = False
                    break
        if recording.is_wanted:
            break
        recording.forget()
    if not watch.device.is_cpu:
        seen.activity, seen.inactive = read_activity(recording, watch.device)
    recording.forget()


def launched_in(recording: Recording | None) -> list[tuple[float, float]]:
    """When work was launched, by time.monotonic(), and how long the device took for it."""
    if recording is None:
        return []
    events, zero = recording.read()
    recording.forget()
    calls = events.launches()
    return [
        (zero + calls[each.link], each.end - each.start)
        for each in events.work
        if each.link in calls
    ]


def charge(
    work: StepWork, operators: Sequence[Operator], launched: Sequence[tuple[float, float]]
) -> None:
    """Give each kernel to the line whose operator launched it."""
    ends = [each.ended for each in operators]
    for moment, seconds in launched:
        at = bisect.bisect_left(ends, moment - _CLOCK_ERROR_SECONDS)
        # What lies between two operators was launched by this suite, which looks at results.
        if at == len(ends) or moment < operators[at].began - _CLOCK_ERROR_SECONDS:
            continue
        line = work.line(operators[at].place)
        line.kernels += 1
        if operators[at].backward:
            line.device_backward_seconds += seconds
        else:
            line.device_seconds += seconds


def read_activity(recording: Recording, device: Device) -> tuple[Activity | None, str]:
    """What some steps show, or why they show nothing."""
    events, _ = recording.read()
    if not events.work:
        return None, "the profiler saw no work of the device"
    spans = find_steps(events, main_lane(events)).spans
    if not spans:
        return None, "the profiler marked no steps"
    calls = events.launches()
    mine = [each for each in events.work if is_inside(calls.get(each.link, -1.0), spans)]
    count = len(spans)
    rank = look_at(events, "").rank
    idle: dict[str, float] = {}
    for step in rank.steps:
        for doing, seconds in (step.idle or {}).items():
            idle[doing] = idle.get(doing, 0.0) + seconds / len(rank.steps)
    kernels = [each for each in mine if each.kind in (COMPUTE, EXCHANGE)]
    told = rank.device
    activity = Activity(
        steps=count,
        seconds=sum(end - start for start, end in spans) / count,
        busy=length(join([(each.start, each.end) for each in mine])) / count,
        idle=idle,
        kernels=len(kernels) / count,
        kernel_seconds=sum(each.end - each.start for each in kernels) / count,
        exposed_copy=sum(each.exposed_copy for each in rank.steps) / len(rank.steps),
        exposed_communication=sum(each.exposed_communication for each in rank.steps)
        / len(rank.steps),
        tensor_core_share=told.tensor_core_seconds / told.kernel_seconds
        if told is not None and told.kernel_seconds
        else 0.0,
        queue_length=told.queue_length if told is not None else 0.0,
        bounds=rank.bounds,
        simulated=device.is_fake,
    )
    return activity, ""


def device_lines(works: Sequence[StepWork], sources: Sources) -> tuple[DeviceLine, ...]:
    """The most expensive ones by device time, per step."""
    sums: dict[object, list[float]] = {}
    for step in works:
        for place, line in step.lines.items():
            if place is None or not place.path or not line.kernels:
                continue
            into = sums.setdefault(place, [0.0, 0.0, 0.0, 0.0])
            for at, amount in enumerate(
                (line.device_seconds, line.device_backward_seconds, line.kernels, line.flops)
            ):
                into[at] += amount / len(works)
    ranked = sorted(sums.items(), key=lambda item: -(item[1][0] + item[1][1]))
    return tuple(
        DeviceLine(sources.site_of(place), forward, backward, kernels, flops)  # type: ignore[arg-type]
        for place, (forward, backward, kernels, flops) in ranked[:MOST_LINES]
    )
