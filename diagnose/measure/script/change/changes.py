"""What can be changed in a running script between two steps, and taken back again?

Each change is one suspected cause removed. None needs the script's consent, and each says what
it does.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from diagnose.measure.machine.allocator import keep_freed_memory, return_large_blocks
from diagnose.measure.machine.device import Device
from diagnose.measure.script.patches import Patches
from diagnose.measure.script.watch.boundary import Forwards
from diagnose.records.script import PLAIN, Cause, Change, Site

REPLAY = "replayed batches"
ALONE, EXCHANGED_ONCE = "no exchange", "one exchange"
# Times as fast as float32: below, a whole step cannot gain what would be worth a cause.
WORTH_LOW_PRECISION = 1.2


@dataclass(frozen=True)
class Variant:
    """One change, and how to make it."""

    name: str
    cause: Cause
    what: str
    site: Site | None
    begin: Callable[[Patches], None]  # until the patches are undone
    against: str = PLAIN
    settle: int = 1  # steps after which it, or its absence, has taken effect
    samples: float = 1.0
    uses: Callable[[], int] | None = None  # counts up whenever it takes effect
    doubles: float = 0.0

    def describe(self, failed: str = "") -> Change:
        return Change(
            self.name,
            self.cause,
            self.against,
            self.what,
            self.site,
            self.samples,
            self.doubles,
            failed,
        )


def other_optimizer(optimizer: torch.optim.Optimizer, site: Site | None) -> Variant | None:
    """The same update by fewer operators, if this optimizer has such a form."""
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

    def begin(patches: Patches) -> None:
        for group in groups:
            for name in ("fused", "foreach"):
                patches.set_item(group, name, name == form)

    return Variant(
        name=f"optimizer {form} {id(optimizer)}",
        cause="optimizer",
        what=f"{form}=True in {type(optimizer).__name__}",
        site=site,
        begin=begin,
    )


def kept_memory(site: Site) -> Variant:
    """On the CPU only: accelerators keep freed memory anyway."""

    def begin(patches: Patches) -> None:
        # Where the C library does not do it, nothing changes and nothing is found.
        keep_freed_memory()
        patches.on_undo(return_large_blocks)

    return Variant(
        name="kept memory",
        cause="allocation",
        what="freed memory was kept for the next tensor instead of going back to the system",
        site=site,
        begin=begin,
        settle=2,
    )


def low_precision(device: Device, gain: float) -> Variant | None:
    """Only where products in low precision are faster on this device."""
    if gain < WORTH_LOW_PRECISION or torch.is_autocast_enabled(device.kind):
        return None
    return Variant(
        name="autocast",
        cause="precision",
        what="everything ran under autocast to bfloat16",
        site=None,
        begin=lambda patches: patches.enter(torch.autocast(device.kind, dtype=torch.bfloat16)),
    )


def tensor_float(device: Device) -> Variant | None:
    if device.kind != "cuda" or torch.get_float32_matmul_precision() != "highest":
        return None

    def begin(patches: Patches) -> None:
        torch.set_float32_matmul_precision("high")
        patches.on_undo(partial(torch.set_float32_matmul_precision, "highest"))

    return Variant("tf32", "precision", "float32 matrix products in TF32", None, begin)


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

    def exchange(on: bool) -> None:
        for model in models:
            model.require_backward_grad_sync = on

    def exchange_never(patches: Patches) -> None:
        exchange(False)
        patches.on_undo(partial(exchange, True))

    def exchange_once(patches: Patches) -> None:
        calls = 0

        def before(module: torch.nn.Module, args: Any, kwargs: Any) -> None:
            nonlocal calls
            if module in models and torch.is_grad_enabled():
                calls += 1
                exchange(calls % per_step == 0)

        patches.on_undo(partial(exchange, True))
        forwards.listen(patches, before=before)

    alone = Variant(
        name=ALONE,
        cause="communication",
        what="gradients were not exchanged",
        site=site,
        begin=exchange_never,
    )
    if per_step < 2:
        return [alone]
    what = f"gradients were exchanged once per step instead of {per_step} times"
    return [alone, replace(alone, name=EXCHANGED_ONCE, what=what, begin=exchange_once)]
