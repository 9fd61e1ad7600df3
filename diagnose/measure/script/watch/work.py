"""What does one step ask for, line by line? The launch map of a running script, and what it shows.

Beside the counts of the launch map it follows three things: where the model's input was born,
which results are the same in every step, and what is computed in double precision.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, NamedTuple

import torch
from torch._C import _len_torch_dispatch_stack
from torch._C._functorch import is_functorch_wrapped_tensor
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves

from diagnose.measure.lines.launches import (
    Asked,
    Calls,
    Operator,
    Operators,
    Tally,
    Watch,
    count_trips,
)
from diagnose.measure.lines.operators import Effect, operand_tensors
from diagnose.measure.lines.source import Caller, Place
from diagnose.measure.machine.device import Device
from diagnose.measure.machine.products import precision_of
from diagnose.measure.script.patches import Patches
from diagnose.measure.script.watch.boundary import Forwards
from diagnose.measure.script.watch.prints import (
    Result,
    address_of,
    array_addresses,
    fingerprint,
    nbytes,
)
from diagnose.measure.script.watch.where import Sources, Spot

_COPIES = frozenset(("_to_copy", "copy_", "clone", "_pin_memory"))
_LOW = frozenset((torch.float16, torch.bfloat16))
# A buffer that is filled anew is no result that somebody computed again.
_FILLS = frozenset(
    f"{name}{ending}"
    for name in ("zero", "zeros", "ones", "full", "fill", "empty", "new_zeros", "new_ones")
    for ending in ("", "_", "_like")
)
# A line that makes more results per step is a loop; its first ones are enough to compare.
MOST_FINGERPRINTS = 64
# Blocks from here on go back to the system at once on the CPU (see bench/allocator.py).
LARGE_BYTES = 32 * 2**20
# And these may, where nothing else lies behind them.
TRIMMED_BYTES = 128 * 2**10
# What an operator moves below this stays in the caches.
CACHED_BYTES = 2 * 2**20
_NOTHING_TO_SWITCH_OFF = contextlib.nullcontext()


@dataclass
class LineWork:
    """What one line asked for in one step."""

    forward_seconds: float = 0.0
    backward_seconds: float = 0.0
    device_seconds: float = 0.0  # of the device itself, where it was recorded
    device_backward_seconds: float = 0.0
    kernels: int = 0
    launches: int = 0
    trips: int = 0
    syncs: int = 0
    flops: int = 0
    moved_bytes: int = 0
    streamed_bytes: int = 0  # of these, by operators whose tensors fit no cache
    new_bytes: int = 0
    large_bytes: int = 0
    copy_seconds: float = 0.0
    converted_seconds: float = 0.0  # in calls that make tensors or arrays of Python's numbers
    snapshot_seconds: float = 0.0
    double_seconds: float = 0.0
    makes_double: bool = False
    # Behind how many weights its operators come: of layers each comes behind the one before.
    depths: set[int] = field(default_factory=set)
    updates: int = 0  # operators that write into weights
    results: list[Result] = field(default_factory=list)


class Amount(NamedTuple):
    """What one call of a model was given."""

    model: int
    rows: int
    tokens: int
    learns: bool  # it is followed by a backward pass, if anything is


@dataclass
class StepWork:
    """One mapped step."""

    lines: dict[Place | None, LineWork] = field(default_factory=dict)
    feeding: set[Spot] = field(default_factory=set)
    inputs: list[tuple[float, bytes]] = field(default_factory=list)
    amounts: list[Amount] = field(default_factory=list)
    flops: Counter[str] = field(default_factory=Counter)  # by precision
    # Of operators in fewer bits than float32: of those that only convert, and of all others.
    low_seconds: dict[str, float] = field(default_factory=lambda: {"casts": 0.0, "others": 0.0})

    @property
    def rows(self) -> int:
        return self._most("rows")

    @property
    def tokens(self) -> int:
        return self._most("tokens")

    def _most(self, what: str) -> int:
        """Over all calls of one model: of several models in a step the one that is given most."""
        counted = [each for each in self.amounts if each.learns] or self.amounts
        totals = Counter[int]()
        for each in counted:
            totals[each.model] += getattr(each, what)
        return max(totals.values(), default=0)

    def line(self, place: Place | None) -> LineWork:
        line = self.lines.get(place)
        if line is None:
            line = self.lines[place] = LineWork()
        return line


class _Results(Operators):  # type: ignore[no-untyped-call]
    """Looks at every operator's arguments and results once the map has counted it."""

    def __init__(self, step: StepMap) -> None:
        super().__init__(step)
        self._step = step

    def run(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        # Below here only this suite and torch call anything, and counting that takes long.
        counting = sys.getprofile()
        sys.setprofile(None)
        try:
            return super().run(func, args, kwargs)
        finally:
            sys.setprofile(counting)

    def note(
        self, asked: Asked, func: Any, args: Any, kwargs: Any, result: Any, seconds: float
    ) -> None:
        super().note(asked, func, args, kwargs, result, seconds)
        # What looking at them asks for is nobody's work.
        with torch._C.DisableTorchFunction(), _without_modes():
            inputs = operand_tensors((*args, *kwargs.values()))
            self._step.note(inputs, operand_tensors((result,)))


def _without_modes() -> contextlib.AbstractContextManager[Any]:
    """This mode is off while it looks; switching off others takes long, and is rarely needed."""
    return _disable_current_modes() if _len_torch_dispatch_stack() else _NOTHING_TO_SWITCH_OFF


class StepMap(Watch):
    """Maps one step, from its beginning until the patches are undone."""

    def __init__(
        self,
        sources: Sources,
        device: Device,
        forwards: Forwards,
        patches: Patches,
        weights: Iterable[torch.Tensor] = (),
    ) -> None:
        super().__init__(sources.lines, device)
        self.work = StepWork()
        self.operators: list[Operator] = []
        self._sources = sources
        self._forwards = forwards
        self._last: tuple[Caller, Place | None, Effect, float, bool] | None = None
        self._births: dict[int, frozenset[Spot]] = {}
        self._depths: dict[int, int] = {}  # operators with weights that a result comes behind
        self._used: set[int] = set()  # weights
        self._converting: tuple[Place, float] | None = None
        self._weights = {address_of(each) for each in weights}
        self._patches = patches
        self._conversions = _conversions()
        self._numbers: set[int] = set()  # addresses of what may be token numbers
        sources.lines.calls.clear()  # those of another mapped step
        self._running = {spot.place for spot in sources.spots(sys._getframe(1))}
        patches.on_undo(self._count)
        patches.enter(_Results(self))
        patches.enter(Calls(self))
        forwards.listen(patches, before=self._note_model_input)
        earlier = sys.getprofile()
        patches.on_undo(lambda: sys.setprofile(earlier))
        sys.setprofile(self._note_call)

    def record(
        self, caller: Caller, place: Place | None, effect: Effect, seconds: float, backward: bool
    ) -> None:
        super().record(caller, place, effect, seconds, backward)
        ended = self.device.now()
        self.operators.append(Operator(place, backward, ended - seconds, ended))
        self._last = (caller, place, effect, seconds, backward)

    def fail(self, error: Exception) -> None:
        """Somebody's script goes on."""
        self._patches.note_fault(error)

    def _count(self) -> None:
        for place, tally in self.tallies.items():
            line = self.work.line(place)
            line.launches = tally.forward.total() + tally.backward.total()
            line.syncs = tally.syncs.total()
            line.flops = tally.flops
            line.trips = self._trips(place, tally)

    def _trips(self, place: Place | None, tally: Tally) -> int:
        if place is None:
            return 0
        # A line that was running before the step began was not called in it.
        return 1 if place in self._running else count_trips(self.lines, place, tally)

    def note(self, inputs: list[torch.Tensor], outputs: list[torch.Tensor]) -> None:
        if self._last is None:
            return
        caller, place, effect, seconds, backward = self._last
        self._last = None
        line = self.work.line(place)
        if backward:
            line.backward_seconds += seconds
        else:
            line.forward_seconds += seconds
        if effect.launches and not backward:
            moved = _moved_bytes(inputs, outputs)
            line.moved_bytes += moved
            line.streamed_bytes += moved if moved >= CACHED_BYTES else 0
        for size in effect.new_bytes:
            line.large_bytes += size if size >= LARGE_BYTES else 0
            line.new_bytes += size if size >= TRIMMED_BYTES and not backward else 0
        self._note_double(line, inputs, outputs, seconds)
        if any(each.dtype in _LOW for each in (*inputs, *outputs)):
            self.work.low_seconds["casts" if effect.name in _COPIES else "others"] += seconds
        if effect.flops and inputs:
            precision = precision_of(self.device, effect.name, inputs[0].dtype)
            self.work.flops[precision] += effect.flops
        if effect.name == "embedding":
            self._note_tokens(inputs)
        if backward or caller.updates_parameters:
            return
        self._note_weights(line, set(map(address_of, inputs)), outputs, effect.launches)
        if self._forwards.inside:
            # What the model makes, and all that is made of it, is not what feeds the model.
            self._births.update((address_of(each), frozenset()) for each in outputs)
        else:
            # A snapshot of the weights is no batch on its way to the model.
            copies = effect.name in _COPIES
            if copies and self._weights.intersection(map(address_of, inputs)):
                line.snapshot_seconds += seconds
                copies = False
            line.copy_seconds += seconds if copies else 0.0
            self._note_birth(inputs, outputs, is_new=effect.launches and not copies)
        if effect.launches and effect.name not in _FILLS and len(line.results) < MOST_FINGERPRINTS:
            line.results += [
                Result(effect.name, fingerprint(each), each.numel(), seconds / len(outputs))
                for each in outputs
            ]

    def _note_weights(
        self, line: LineWork, inputs: set[int], outputs: list[torch.Tensor], launches: bool
    ) -> None:
        used = self._weights & inputs if launches else set[int]()
        depth = max((self._depths.get(each, 0) for each in inputs), default=0)
        depth += not used <= self._used  # a loop over time uses the same weights again
        self._used |= used
        if used:
            line.updates += not used.isdisjoint(map(address_of, outputs))
        if launches:
            line.depths.add(depth)
        self._depths.update((address_of(each), depth) for each in outputs)

    def _note_double(
        self,
        line: LineWork,
        inputs: list[torch.Tensor],
        outputs: list[torch.Tensor],
        seconds: float,
    ) -> None:
        for each in outputs:
            if each.dtype is torch.float64 and each.dim() > 0:
                line.double_seconds += seconds
                line.makes_double |= not any(each.dtype is torch.float64 for each in inputs)
                return

    def _note_birth(
        self, inputs: list[torch.Tensor], outputs: list[torch.Tensor], is_new: bool
    ) -> None:
        """A result comes from where its arguments come from; made of nothing known, it is born.

        A view or a copy of something unknown stays unknown: nobody has made it here.
        """
        known = [self._births[each] for each in map(address_of, inputs) if each in self._births]
        if not known and not is_new and inputs:
            return
        if known:
            birth = frozenset[Spot]().union(*known)
        else:
            birth = frozenset(self._sources.spots(sys._getframe(2)))
        for each in outputs:
            self._births[address_of(each)] = birth

    def _note_call(self, frame: FrameType, event: str, result: object) -> None:
        """For sys.setprofile: counts calls, and notes who hands out arrays that hold data."""
        try:
            self._note_event(frame, event, result)
        except Exception as error:
            self.fail(error)

    def _note_event(self, frame: FrameType, event: str, result: object) -> None:
        if event == "call":
            self.lines.note_call(frame, event, result)
        elif event == "c_call":
            if result in self._conversions and self._converting is None:
                self._begin_conversion(frame)
        elif event == "c_return":
            if result in self._conversions and self._converting is not None:
                self._end_conversion(frame)
        elif event == "return" and result is not None and self._sources.is_users(frame.f_code):
            for address in array_addresses(result):
                self._births.setdefault(address, frozenset(self._sources.spots(frame)))

    def _begin_conversion(self, frame: FrameType) -> None:
        if self._sources.is_users(frame.f_code):
            place = Place(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)
            self._converting = place, time.perf_counter()

    def _end_conversion(self, frame: FrameType) -> None:
        assert self._converting is not None
        place, began = self._converting
        if frame.f_code.co_filename == place.path:  # the call itself, and none inside it
            self.work.line(place).converted_seconds += time.perf_counter() - began
            self._converting = None

    def _note_model_input(
        self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """The first tensor decides: masks and positions beside it are made from it."""
        first = next(iter(_tensors((args, kwargs))), None)
        # Inside torch.func's transforms a tensor stands for many, and has no memory of its own.
        if first is not None and not is_functorch_wrapped_tensor(first):
            with _disable_current_modes(), torch._C.DisableTorchFunction():
                self.work.inputs.append(fingerprint(first))
            if module.training:
                self._weights.update(map(address_of, module.parameters()))
            birth = self._births.get(address_of(first))
            self.work.feeding |= birth or frozenset()
            # A loss is given what a model has made, which are no further samples.
            if first.dim() and first.grad_fn is None and birth != frozenset():
                learns = torch.is_grad_enabled()
                self.work.amounts.append(Amount(id(module), first.shape[0], 0, learns))
                whole = not first.is_floating_point() and not first.is_complex()
                self._numbers = {address_of(first)} if whole and first.dim() == 2 else set()

    def _note_tokens(self, inputs: list[torch.Tensor]) -> None:
        """Whole numbers of two dimensions that an embedding looks up are tokens."""
        for each in inputs:
            if address_of(each) in self._numbers:
                self._numbers.clear()
                last = self.work.amounts[-1]
                self.work.amounts[-1] = last._replace(tokens=each.numel())


def _conversions() -> frozenset[object]:
    """What makes a tensor or an array of Python's own objects, one by one."""
    numpy = sys.modules.get("numpy")
    arrays = (numpy.array, numpy.asarray) if numpy is not None else ()
    return frozenset((torch.tensor, torch.as_tensor, *arrays))


def _tensors(tree: object) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def _moved_bytes(inputs: list[torch.Tensor], outputs: list[torch.Tensor]) -> int:
    """What the operator has to read and write; in place it may touch only a part of a tensor."""
    sizes = [nbytes(each) for each in (*inputs, *outputs) if each.dim() > 0]
    known = {address_of(each) for each in inputs}
    in_place = any(address_of(each) in known for each in outputs)
    return 2 * min(sizes, default=0) if in_place else sum(sizes)
