"""What can be changed in a running script between two steps, and taken back again?

Each change is one suspected cause removed. None needs the script's consent, and each says what
it does.
"""

from __future__ import annotations

import gc
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from diagnose.measure.machine.allocator import keep_freed_memory, return_large_blocks
from diagnose.measure.machine.device import Device
from diagnose.measure.script.watch.forwards import Forwards
from diagnose.records.script import PLAIN, Cause, Site

REPLAY = "replayed batches"
ALONE, EXCHANGED_ONCE = "no exchange", "one exchange"


@dataclass(frozen=True)
class Variant:
    """One change, and how to make and undo it."""

    name: str
    cause: Cause
    what: str
    site: Site | None
    begin: Callable[[], None]
    end: Callable[[], None]
    against: str = PLAIN
    settle: int = 1  # steps after which it, or its absence, has taken effect
    samples: float = 1.0
    uses: Callable[[], int] | None = None  # counts up whenever it takes effect
    doubles: float = 0.0


def other_optimizer(optimizer: torch.optim.Optimizer, site: Site | None) -> Variant | None:
    """The same update by fewer operators, if this optimiser has such a form."""
    groups = optimizer.param_groups
    parameters = [each for group in groups for each in group["params"]]
    usable = all(
        each.is_floating_point() and (each.grad is None or each.grad.layout is torch.strided)
        for each in parameters
    )
    blocked = any(group.get("differentiable") or group.get("capturable") for group in groups)
    if not usable or blocked or any(group.get("fused") for group in groups):
        return None
    form = next((name for name in ("fused", "foreach") if name in groups[0]), None)
    if form is None or all(group.get(form) for group in groups):
        return None
    earlier = [{name: group.get(name) for name in ("fused", "foreach")} for group in groups]

    def begin() -> None:
        for group in groups:
            group.update({"fused": form == "fused", "foreach": form == "foreach"})

    def end() -> None:
        for group, flags in zip(groups, earlier, strict=True):
            group.update(flags)

    return Variant(
        name=f"optimizer {form} {id(optimizer)}",
        cause="optimizer",
        what=f"{form}=True in {type(optimizer).__name__}",
        site=site,
        begin=begin,
        end=end,
    )


class AutocastWatch:
    """Sees where the script enters autocast, and can switch it off."""

    def __init__(self, on_enter: Callable[[], None]) -> None:
        self._on_enter = on_enter
        self._off = False
        self._switched: list[Any] = []

    def install(self) -> None:
        original = self._original = torch.autocast.__enter__

        def enter(context: Any) -> Any:
            self._on_enter()
            if self._off and context._enabled:
                context._enabled = False
                self._switched.append(context)
            return original(context)  # type: ignore[no-untyped-call]

        torch.autocast.__enter__ = enter  # type: ignore[method-assign]

    def remove(self) -> None:
        torch.autocast.__enter__ = self._original  # type: ignore[method-assign]

    def switch_off(self) -> None:
        self._off = True

    def switch_on(self) -> None:
        self._off = False
        for context in self._switched:
            context._enabled = True
        self._switched.clear()


def kept_memory(site: Site | None) -> Variant:
    """On the CPU only: accelerators keep freed memory anyway."""
    return Variant(
        name="kept memory",
        cause="allocation",
        what="freed memory was kept for the next tensor instead of going back to the system",
        site=site,
        begin=lambda: _ignore(keep_freed_memory()),
        end=lambda: _ignore(return_large_blocks()),
        settle=2,
    )


def low_precision(device: Device, gain: float) -> Variant | None:
    """Only where products in low precision are faster on this device."""
    if gain < WORTH_LOW_PRECISION or torch.is_autocast_enabled(device.kind):
        return None
    context = torch.autocast(device.kind, dtype=torch.bfloat16)
    return Variant(
        name="autocast",
        cause="precision",
        what="everything ran under autocast to bfloat16",
        site=None,
        begin=lambda: _ignore(context.__enter__()),  # type: ignore[no-untyped-call]
        end=lambda: _ignore(context.__exit__(None, None, None)),
    )


def tensor_float(device: Device) -> Variant | None:
    if device.kind != "cuda" or torch.get_float32_matmul_precision() != "highest":
        return None
    return Variant(
        name="tf32",
        cause="precision",
        what="float32 matrix products in TF32",
        site=None,
        begin=lambda: torch.set_float32_matmul_precision("high"),
        end=lambda: torch.set_float32_matmul_precision("highest"),
    )


def other_exchanges(forwards: Forwards, per_step: int, site: Site | None) -> list[Variant]:
    """Fewer exchanges of gradients: none at all, and only the last of a step that has several.

    Without any, what is left is every rank's own work. The ranks' parameters differ afterwards,
    so the run must end with these windows.
    """
    # By type: asking an object for its class may wake a deprecated one that warns.
    kind = DistributedDataParallel
    models = [each for each in gc.get_objects() if issubclass(type(each), kind)]
    if not models:
        return []

    def exchange(wanted: bool) -> None:
        for model in models:
            model.require_backward_grad_sync = wanted

    alone = Variant(
        name=ALONE,
        cause="communication",
        what="gradients were not exchanged",
        site=site,
        begin=lambda: exchange(False),
        end=lambda: exchange(True),
    )
    calls = 0

    def before(module: torch.nn.Module, args: Any, kwargs: Any) -> None:
        nonlocal calls
        if module in models and torch.is_grad_enabled():
            calls += 1
            exchange(calls % per_step == 0)

    def begin() -> None:
        nonlocal calls
        calls = 0
        forwards.before.append(before)

    def end() -> None:
        forwards.before.remove(before)
        exchange(True)

    if per_step < 2:
        return [alone]
    what = f"gradients were exchanged once per step instead of {per_step} times"
    return [alone, replace(alone, name=EXCHANGED_ONCE, what=what, begin=begin, end=end)]


def steps_per_window(step_seconds: float, ranks: int) -> int:
    """Long enough that one interruption by the system does not decide it."""
    return max(2 if ranks > 1 else 1, math.ceil(WINDOW_SECONDS / max(step_seconds, 1e-6)))


WINDOW_SECONDS = 0.15
# Times as fast as float32: below, a whole step cannot gain what would be worth a cause.
WORTH_LOW_PRECISION = 1.2


def _ignore(_: object) -> None:
    """mallopt says whether it worked; where it did not, nothing changes and nothing is found."""
