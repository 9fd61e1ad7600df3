"""Which source line causes which device work? Every operator of one step, by the user's line.

An operator that runs inside the backward pass belongs to the line whose forward made its
autograd node. torch numbers the nodes in the order in which they are made, so it is enough to
note, call by call, which numbers came up on which line. Code of the user's that itself runs
inside the backward pass (hooks, autograd functions, recomputation) keeps its own line.
"""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch._C._autograd import _get_sequence_nr
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from diagnose.measure.lines.operators import Effect, observe
from diagnose.measure.lines.source import (
    OPTIMIZER,
    Caller,
    Instruction,
    Place,
    SourceLines,
    read_code,
)
from diagnose.measure.machine.device import Device
from diagnose.records.experiments import LaunchLine, LaunchMap
from diagnose.records.header import Reading, Setting

# Enough to recognise what a line does; a library call behind one line may use dozens.
MOST_OPERATORS = 5

# On the CPU a host tensor and a device tensor are the same, and these never reach an operator.
_READS_ON_HOST = frozenset((torch._C.TensorBase.cpu, torch._C.TensorBase.tolist))
# Nodes that put gradients into parameters have no number of their own.
_ACCUMULATES = "AccumulateGrad"


@dataclass
class Tally:
    """What one line has asked for so far."""

    forward: Counter[str] = field(default_factory=Counter)
    backward: Counter[str] = field(default_factory=Counter)
    syncs: Counter[str] = field(default_factory=Counter)
    allocated_bytes: int = 0
    largest_bytes: int = 0
    flops: int = 0
    seconds: float = 0.0
    instructions: set[Instruction] = field(default_factory=set)


class Asked(NamedTuple):
    """Who asks for an operator."""

    caller: Caller
    place: Place | None
    backward: bool


class Operator(NamedTuple):
    """One that ran alone in a mapped step, by time.monotonic()."""

    place: Place | None
    backward: bool
    began: float
    ended: float


class Watch:
    """Everything seen during the step."""

    def __init__(self, lines: SourceLines, device: Device) -> None:
        self.lines = lines
        self.device = device
        self.tallies: dict[Place | None, Tally] = {}
        self._makers: dict[int, Place | None] = {}
        # torch numbers nodes thread by thread, and accelerators have a thread for backward.
        self._thread = threading.get_ident()
        self.unclaimed = _get_sequence_nr()
        self._last_maker: Place | None = None

    def fail(self, error: Exception) -> None:
        """This suite could not count something; of its own steps that must not be overlooked."""
        raise error

    def tally(self, place: Place | None) -> Tally:
        tally = self.tallies.get(place)
        if tally is None:
            tally = self.tallies[place] = Tally()
        return tally

    def claim_nodes(self, find_place: Callable[[], Place | None]) -> None:
        """The nodes made since the last claim were made by this place."""
        reached = _get_sequence_nr()
        if reached > self.unclaimed and threading.get_ident() == self._thread:
            place = find_place()
            self._makers.update(dict.fromkeys(range(self.unclaimed, reached), place))
            self.unclaimed = reached

    def maker(self, node: torch.autograd.graph.Node) -> Place | None:
        """The place whose forward made the node that is running.

        Adding a gradient to its parameter is the work of the node that delivered it, which
        ran immediately before.
        """
        if _ACCUMULATES not in node.name():
            self._last_maker = self._makers.get(node._sequence_nr())
        return self._last_maker

    def record(
        self, caller: Caller, place: Place | None, effect: Effect, seconds: float, backward: bool
    ) -> None:
        tally = self.tally(place)
        if caller.instruction is not None:
            tally.instructions.add(caller.instruction)
        if effect.launches:
            (tally.backward if backward else tally.forward)[effect.name] += 1
        # Optimizers read step counters, which torch keeps on the host unless told otherwise;
        # anomaly detection reads every gradient.
        torchs = caller.updates_parameters and self.device.is_cpu
        torchs = torchs or (backward and torch.is_anomaly_enabled())
        if effect.synchronizes and not torchs:
            tally.syncs[effect.name] += 1
        for nbytes in effect.new_bytes:
            tally.allocated_bytes += nbytes
            tally.largest_bytes = max(tally.largest_bytes, nbytes)
        tally.flops += effect.flops
        tally.seconds += seconds


class Operators(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees every operator, forward and backward, below autograd."""

    def __init__(self, watch: Watch) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._watch = watch

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        # In inference mode composite operators arrive whole, and only their parts have FLOPs.
        if torch.is_inference_mode_enabled() and isinstance(func, torch._ops.OpOverload):
            with self:
                result = func.decompose(*args, **kwargs)
            if result is not NotImplemented:
                return result
        return self.run(func, args, kwargs)

    def run(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Run the operator and note what it did."""
        device = self._watch.device
        asked = self._ask()
        device.synchronize()
        began = device.now()
        result = func(*args, **kwargs)
        device.synchronize()
        seconds = device.now() - began
        if asked is not None:
            try:
                self.note(asked, func, args, kwargs, result, seconds)
            except Exception as error:
                self._watch.fail(error)
        return result

    def _ask(self) -> Asked | None:
        """Who asks for an operator now."""
        watch = self._watch
        try:
            node = torch._C._current_autograd_node()
            # Above this one are `run` and, in the frame of the mode, its callers in torch.
            caller = watch.lines.find(sys._getframe(2), in_backward=node is not None)
            watch.claim_nodes(lambda: caller.place)
            place = caller.place
            if place is None and node is not None:
                place = watch.maker(node)
        except Exception as error:
            watch.fail(error)
            return None
        return Asked(caller, place, node is not None)

    def note(
        self, asked: Asked, func: Any, args: Any, kwargs: Any, result: Any, seconds: float
    ) -> None:
        effect = observe(func, args, kwargs, result, self._watch.device.kind)
        self._watch.record(asked.caller, asked.place, effect, seconds, asked.backward)


class Calls(TorchFunctionMode):
    """Sees every call of torch above autograd: all nodes made inside belong to its line.

    It also puts a Python frame under every such call, so that the calls can be counted.
    """

    def __init__(self, watch: Watch) -> None:
        super().__init__()
        self._watch = watch
        self._reads = _READS_ON_HOST if watch.device.is_cpu else frozenset[Any]()

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        # As few calls as can be: each of them is an event for the profile hook.
        result = func(*args, **kwargs) if kwargs else func(*args)
        try:
            watch = self._watch
            if _get_sequence_nr() > watch.unclaimed:
                frame = sys._getframe(1)
                watch.claim_nodes(lambda: watch.lines.find(frame, in_backward=False).place)
            if func in self._reads:
                caller = watch.lines.find(sys._getframe(1), in_backward=False)
                read = Effect(func.__name__, False, True, (), 0)
                watch.record(caller, caller.place, read, 0.0, False)
        except Exception as error:
            self._watch.fail(error)
        return result


def map_launches(
    step: Callable[[], object],
    device: Device,
    *,
    roots: Sequence[Path],
    form: str,
    settings: Mapping[str, Setting],
) -> LaunchMap:
    """Run the step twice, the second time watched; its own time is not worth measuring."""
    step()
    device.synchronize()
    watch = Watch(SourceLines(roots), device)
    earlier = sys.getprofile()
    with Operators(watch), Calls(watch):
        sys.setprofile(watch.lines.note_call)
        try:
            step()
        finally:
            sys.setprofile(earlier)
    device.synchronize()
    outside = watch.tallies.pop(None, Tally())
    lines = [_line(watch, place, tally) for place, tally in watch.tallies.items() if place]
    lines.sort(key=lambda line: (-line.forward - line.backward, line.file, line.line))
    unattributed = outside.forward.total() + outside.backward.total()
    return LaunchMap(
        form=form,
        settings=dict(settings),
        lines=tuple(line for line in lines if _asks_for_something(line)),
        launches=unattributed + sum(line.forward + line.backward for line in lines),
        unattributed=unattributed,
        notes=_notes(device),
    )


def _line(watch: Watch, place: Place, tally: Tally) -> LaunchLine:
    operators = tally.forward + tally.backward
    return LaunchLine(
        file=watch.lines.name(place.path) or "",
        line=place.line,
        function=place.function,
        code="" if place is OPTIMIZER else read_code(place),
        forward=tally.forward.total(),
        backward=tally.backward.total(),
        trips=count_trips(watch.lines, place, tally),
        syncs=tally.syncs.total(),
        sync_operators=tuple(sorted(tally.syncs)),
        allocated_bytes=tally.allocated_bytes,
        largest_bytes=tally.largest_bytes,
        flops=tally.flops,
        seconds=Reading(tally.seconds),
        operators=dict(
            sorted(operators.items(), key=lambda each: (-each[1], each[0]))[:MOST_OPERATORS]
        ),
    )


def count_trips(lines: SourceLines, place: Place, tally: Tally) -> int:
    """How often the line ran: the most calls that one of its instructions made.

    A line that runs inside the backward pass only has the count of its most frequent operator.
    """
    if place is OPTIMIZER:
        return 1
    calls = max((lines.calls[each] for each in tally.instructions), default=0)
    return calls or max((*tally.forward.values(), *tally.backward.values()), default=1)


def _asks_for_something(line: LaunchLine) -> bool:
    return bool(line.forward or line.backward or line.syncs or line.allocated_bytes)


def _notes(device: Device) -> tuple[str, ...]:
    notes = [
        "A launch is an operator that writes a tensor, makes a new one or reads a value back; "
        "views, changes of shape and bare allocations ask the device for nothing.",
        "Launches of the backward pass count for the line whose forward made them; bytes, "
        "FLOPs and time contain both passes. FLOPs are those of torch's own registry.",
        "Self time is the time inside the line's operators, each timed alone with the device "
        "synchronised, under instrumentation: compare lines with it, not steps.",
        "The counts do not depend on the device, except where torch picks fused or multi-tensor "
        "(foreach) operators on accelerators: the optimizer mostly, and attention.",
    ]
    if device.is_cpu:
        notes.append(
            "This map was made on the CPU, where nothing waits for a device: a synchronization "
            "here is an operator that would make the host wait for an accelerator."
        )
    return tuple(notes)
