"""What is kept of a trace in memory? Numbers in arrays, every name once, about 40 bytes an event.

Times are seconds since the first event. Short frames of libraries and of built-in functions are
left out: nobody repairs those, and they are most of a trace.
"""

from __future__ import annotations

import math
import re
import statistics
import sys
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from diagnose.measure.trace.stream import Event, parse_later
from diagnose.records.script import Site

# What the host does.
OP, DOUBLE, NOTE, FRAME, MODULE, BACKWARD, SAVE, CALL, LIBRARY = range(9)  # DOUBLE: in float64
_UNTOLD = -1
# What the device does.
COMPUTE, EXCHANGE, COPY, SET = range(4)

_DEVICE_KINDS = {
    "kernel": COMPUTE,
    "gpu_memcpy": COPY,
    "gpu_memset": SET,
    # Before torch 1.10.
    "Kernel": COMPUTE,
    "Memcpy": COPY,
    "Memset": SET,
}
_RUNTIME = re.compile(r"(\w+_)?(runtime|driver)", re.IGNORECASE)
FRAME_NAME = re.compile(r"(.*)\((\d+)\): (.*)", re.DOTALL)
_NOTES = ("ProfilerStep#", "Optimizer.", "enumerate(DataLoader)")
_EXCHANGES = re.compile(r"nccl|rccl|oneccl", re.IGNORECASE)
_NO_FRAMES = ("<built-in", "<frozen")
# Frames of torch's own that say which phase of a step it is.
_PHASES = {"backward": BACKWARD, "save": SAVE}
_PHASE_FILE = re.compile(r"torch/(_tensor|autograd/__init__|serialization)\.py$")
_LIBRARIES = {
    "torch",
    "torchvision",
    "torchaudio",
    "numpy",
    "pandas",
    "scipy",
    "sklearn",
    "PIL",
    "matplotlib",
    "transformers",
    "accelerate",
    "datasets",
    "tokenizers",
    "safetensors",
    "huggingface_hub",
    "lightning",
    "pytorch_lightning",
    "timm",
    "einops",
    "tqdm",
    "triton",
    "deepspeed",
    "apex",
    "wandb",
    "tensorboard",
    "torchmetrics",
}
_INSTALLED = re.compile(r"(site-packages|dist-packages|/lib/python[\d.]+)/")
# A library's function is told where it takes so long that it could explain a step.
_LONG_SECONDS = 200e-6
# A unix time in microseconds has 16 digits, in nanoseconds 19.
_NANOSECONDS_FROM = 1e17
# No trace is so long; what lies farther from the middle has a broken clock.
_FARTHEST_SECONDS = 4 * 3600.0


class Lane:
    """What one thread of the host does, as parallel columns."""

    def __init__(self) -> None:
        self.starts, self.ends = array("d"), array("d")
        self.names, self.kinds = array("i"), array("b")
        # Of an operator its autograd sequence number, of a call its correlation; else -1.
        self.links = array("q")
        self.sites = array("i")  # of a frame, or of an operator with a stack; else -1

    def __len__(self) -> int:
        return len(self.starts)

    def keep(self, start: float, end: float) -> int:
        """Only what goes on between these times; how many were dropped."""
        times = enumerate(zip(self.starts, self.ends, strict=True))
        places = [at for at, (first, last) in times if first < end and last > start]
        dropped = len(self) - len(places)
        if dropped:
            for name, column in vars(self).items():
                setattr(self, name, array(column.typecode, map(column.__getitem__, places)))
        return dropped


class Work(NamedTuple):
    """One piece of work of the device."""

    start: float
    end: float
    kind: int
    name: int
    stream: tuple[int, int]
    link: int  # the correlation of its launch
    group: int  # of a collective, how many ranks take part; 0 where the trace does not say


class Memory:
    """Changes of the memory in use, as parallel columns."""

    def __init__(self) -> None:
        self.times = array("d")
        self.changes, self.totals, self.addresses = array("q"), array("q"), array("q")


class Events:
    """Everything that is kept of one file."""

    def __init__(self, stream: Iterable[Event]) -> None:
        self.names: list[str] = []
        self.sites: list[Site] = []
        self.lanes: dict[tuple[str, str], Lane] = {}
        self.work: list[Work] = []
        self.memory = {False: Memory(), True: Memory()}  # of the host, of the device
        self.seen = 0
        self.without_duration = 0
        self.broken_clock = 0
        self._name_numbers: dict[str, int] = {}
        self._site_numbers: dict[str, int] = {}
        self._stack_numbers: dict[str, int] = {}
        self._frame_kinds: dict[str, int] = {}
        self._lanes_by_raw: dict[tuple[object, object], Lane] = {}
        self.base = 0.0  # of the first event, in the trace's own unit
        self.scale = 0.0  # of that unit, in seconds
        self._collect(stream)
        self._drop_broken_clocks()

    def _collect(self, stream: Iterable[Event]) -> None:
        """The only loop that sees every event."""
        takers: dict[object, Callable[[Event], None]] = {
            "python_function": self._take_frame,
            "cpu_op": self._take_operator,
            "Operator": self._take_operator,
            "user_annotation": self._take_note,
            **dict.fromkeys(_DEVICE_KINDS, self._take_work),
        }
        for event in stream:
            self.seen += 1
            phase = event.get("ph")
            if phase == "X":
                category = event.get("cat")
                take = takers.get(category)
                if take is None:
                    runtime = isinstance(category, str) and _RUNTIME.fullmatch(category)
                    take = takers[category] = self._take_call if runtime else _skip
                take(event)
            elif phase == "i" and event.get("name") == "[memory]":
                self._take_memory(event)

    def _take_frame(self, event: Event) -> None:
        name = event.get("name")
        if not isinstance(name, str) or name.startswith(_NO_FRAMES):
            return
        kind = self._frame_kinds.get(name)
        if kind is None:
            kind = self._frame_kinds[name] = self._classify(name)
        if kind == _UNTOLD:
            return
        if kind == LIBRARY:
            lasts = event.get("dur")
            if not isinstance(lasts, float | int) or lasts * self.scale < _LONG_SECONDS:
                return
        self._add(event, kind, -1, self._site_numbers.get(name, -1))

    def _take_operator(self, event: Event) -> None:
        name, args = event.get("name"), event.get("args") or {}
        if isinstance(name, str) and name.startswith(_NOTES):
            return self._take_note(event)
        stack = args.get("Call stack")
        types = args.get("Input type")
        link = args.get("Sequence number", -1)
        self._add(
            event,
            DOUBLE if types and "double" in types and _has_double_tensor(types, args) else OP,
            link if isinstance(link, int) else -1,
            self._innermost(stack) if stack else -1,
        )
        return None

    def _take_note(self, event: Event) -> None:
        stack = (event.get("args") or {}).get("Call stack")
        self._add(event, NOTE, -1, self._innermost(stack) if stack else -1)

    def _take_call(self, event: Event) -> None:
        self._add(event, CALL, _whole((event.get("args") or {}).get("correlation"), -1), -1)

    def _take_work(self, event: Event) -> None:
        times = self._times(event)
        if times is None:
            return
        args = event.get("args") or {}
        name, kind = str(event.get("name")), _DEVICE_KINDS[event["cat"]]
        if kind == COMPUTE and _EXCHANGES.search(name):
            kind = EXCHANGE
        stream = _whole(args.get("device", event.get("pid")), 0), _whole(args.get("stream"), 0)
        link, group = _whole(args.get("correlation"), -1), _whole(args.get("Group size"), 0)
        self.work.append(Work(*times, kind, self._number(name), stream, link, group))

    def _take_memory(self, event: Event) -> None:
        args = event.get("args") or {}
        times = self._times({"ts": event.get("ts"), "dur": 0})
        if times is not None:
            memory = self.memory[args.get("Device Type") not in (0, None)]
            memory.times.append(times[0])
            memory.changes.append(_whole(args.get("Bytes"), 0))
            memory.totals.append(_whole(args.get("Total Allocated"), 0))
            memory.addresses.append(_whole(args.get("Addr"), 0))

    def _add(self, event: Event, kind: int, link: int, site: int) -> None:
        times = self._times(event)
        if times is None:
            return
        raw = event.get("pid"), event.get("tid")
        lane = self._lanes_by_raw.get(raw)
        if lane is None:
            lane = self.lanes.setdefault((str(raw[0]), str(raw[1])), Lane())
            self._lanes_by_raw[raw] = lane
        lane.starts.append(times[0])
        lane.ends.append(times[1])
        lane.names.append(self._number(str(event.get("name"))))
        lane.kinds.append(kind)
        lane.links.append(link)
        lane.sites.append(site)

    def _times(self, event: Event) -> tuple[float, float] | None:
        try:
            at, lasts = float(event["ts"]), float(event["dur"])
        except (KeyError, TypeError, ValueError):
            self.without_duration += 1
            return None
        if not self.scale and math.isfinite(at):
            self.base = at
            self.scale = 1e-9 if abs(at) > _NANOSECONDS_FROM else 1e-6
        start = (at - self.base) * self.scale
        if not 0 <= lasts * self.scale < _FARTHEST_SECONDS or start != start:
            self.broken_clock += 1
            return None
        return start, start + lasts * self.scale

    def _number(self, name: str) -> int:
        number = self._name_numbers.get(name)
        if number is None:
            number = self._name_numbers[name] = len(self.names)
            self.names.append(name)
        return number

    def _classify(self, name: str) -> int:
        """What a frame says of a step."""
        if name.startswith("nn.Module: "):
            return MODULE
        found = FRAME_NAME.fullmatch(name)
        if found is None:
            return _UNTOLD
        file, line, function = found.groups()
        if _PHASE_FILE.search(file):
            return _PHASES.get(function, _UNTOLD)
        if file.startswith("torch/") or "/torch/" in file:
            return _UNTOLD
        if is_library(file):
            return LIBRARY
        self._site_numbers[name] = len(self.sites)
        self.sites.append(Site(file, int(line), function))
        return FRAME

    def _innermost(self, stack: str) -> int:
        """The user's own line in the text of a stack, innermost first; -1 without one."""
        number = self._stack_numbers.get(stack)
        if number is None:
            number = -1
            for name in str(stack).split(";"):
                kind = self._frame_kinds.get(name)
                if kind is None:
                    kind = self._frame_kinds[name] = self._classify(name)
                if kind == FRAME:
                    number = self._site_numbers[name]
                    break
            self._stack_numbers[stack] = number
        return number

    def launches(self) -> dict[int, float]:
        """When each call began that the device's work may refer to."""
        return {
            link: lane.starts[at]
            for lane in self.lanes.values()
            for at, link in enumerate(lane.links)
            if link >= 0 and lane.kinds[at] == CALL
        }

    def keep_between(self, start: float, end: float) -> None:
        """Forget the host outside of these times; the device stays whole."""
        for lane in self.lanes.values():
            lane.keep(start, end)
        self.lanes = {key: lane for key, lane in self.lanes.items() if len(lane)}

    def _drop_broken_clocks(self) -> None:
        """Events years away from all others: a clock that jumped, or was never set."""
        starts = [start for lane in self.lanes.values() for start in lane.starts[::97]]
        starts += [each.start for each in self.work[::97]]
        if not starts:
            return
        middle = statistics.median(starts)
        first, last = middle - _FARTHEST_SECONDS, middle + _FARTHEST_SECONDS
        self.broken_clock += sum(lane.keep(first, last) for lane in self.lanes.values())
        kept = [each for each in self.work if first < each.start < last]
        self.broken_clock += len(self.work) - len(kept)
        self.work = sorted(kept)
        self.lanes = {key: lane for key, lane in self.lanes.items() if len(lane)}


def is_library(file: str) -> bool:
    """Whether the code of this file is somebody else's."""
    if file.startswith(("<frozen", "<string>")) or _INSTALLED.search(file):
        return True
    top = file.split("/", 1)[0].removesuffix(".py")
    return top in _LIBRARIES or top in sys.stdlib_module_names


def _whole(value: Any, otherwise: int) -> int:
    return value if isinstance(value, int) else otherwise


def _has_double_tensor(types: Sequence[str], args: Mapping[str, Any]) -> bool:
    """Numbers of Python's are doubles too, and have no dimensions."""
    dims = parse_later(args.get("Input Dims"))
    if not isinstance(dims, list):
        return True
    return any(kind == "double" and size for kind, size in zip(types, dims, strict=False))


def _skip(event: Event) -> None:
    """An event that says nothing about time: flows, spans of the profiler itself."""
