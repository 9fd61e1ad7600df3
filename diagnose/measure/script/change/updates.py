"""Would another form of the optimizer be faster? The same update, timed on copies between steps.

The script's own optimizer and parameters are not touched: fused and foreach forms round in another
order. Of a large model a part of the tensors is copied, and stands for all of them.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from diagnose.measure.machine.device import Device
from diagnose.records.script import Change, Site, Window
from diagnose.records.stats import FEWEST_FOR_INTERVAL

MOST_OPTIMIZERS = 2
MOST_COPIED_BYTES = 32_000_000
# Of one side, in one go: what is shorter is repeated.
SECONDS = 0.005


@dataclass
class TimedUpdate:
    """Seconds of both forms, in pairs."""

    optimizer: torch.optim.Optimizer
    place: int
    form: str
    scale: float  # all tensors by those that were copied
    own: list[float] = field(default_factory=list)
    other: list[float] = field(default_factory=list)

    @property
    def _names(self) -> tuple[str, str]:
        return f"update {self.place}", f"update {self.form} {self.place}"

    def changes(self, site: Site | None) -> list[Change]:
        own, other = self._names
        what = f"{self.form}=True in {type(self.optimizer).__name__}"
        return [Change(other, "optimizer", own, what, site)]

    def windows(self, first_block: int) -> list[Window]:
        return [
            Window(first_block + number, name, 1, seconds * self.scale)
            for name, each in zip(self._names, (self.own, self.other), strict=True)
            for number, seconds in enumerate(each)
        ]


def time_updates(
    optimizers: Iterable[torch.optim.Optimizer], device: Device
) -> Iterator[TimedUpdate]:
    """The largest first."""
    largest = sorted(optimizers, key=_tensors_of, reverse=True)[:MOST_OPTIMIZERS]
    for place, optimizer in enumerate(largest):
        form = other_form(optimizer)
        if form is None:
            continue
        chosen, scale = _choose(optimizer)
        try:
            own, other = _copy(optimizer, chosen, ""), _copy(optimizer, chosen, form)
            if own is None or other is None:
                continue
            timed = TimedUpdate(optimizer, place, form, scale)
            repeats = 1
            for number in range(-2, FEWEST_FOR_INTERVAL):
                pair = [_time(each, device, repeats) for each in (own, other)]
                if number < 0:  # warm, and long enough for the clock
                    repeats = max(1, min(50, round(SECONDS / max(pair[0], 1e-6))))
                    continue
                timed.own.append(pair[0])
                timed.other.append(pair[1])
        except (RuntimeError, TypeError, KeyError, AttributeError):
            continue  # this form does not exist here, or there is no memory for the copies
        yield timed


def other_form(optimizer: torch.optim.Optimizer) -> str | None:
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
    return None if form is None or all(group.get(form) for group in groups) else form


def _tensors_of(optimizer: torch.optim.Optimizer) -> int:
    return sum(len(group["params"]) for group in optimizer.param_groups)


def _choose(optimizer: torch.optim.Optimizer) -> tuple[set[int], float]:
    """Parameters with gradients whose copies fit, and what they must be scaled by."""
    able = [p for g in optimizer.param_groups for p in g["params"] if p.grad is not None]
    # Parameter, gradient and up to two states, for two optimizers.
    total = sum(each.nbytes for each in able)
    step = max(1, -(-8 * total // MOST_COPIED_BYTES))
    chosen = able[::step]
    return {id(each) for each in chosen}, len(able) / max(1, len(chosen))


def _copy(optimizer: torch.optim.Optimizer, chosen: set[int], form: str) -> Any:
    """An optimizer of the same class with copies of its tensors; None if nothing can be copied."""
    groups: list[dict[str, Any]] = []
    states: dict[torch.Tensor, dict[str, Any]] = {}
    for group in optimizer.param_groups:
        copies = []
        for parameter in group["params"]:
            if id(parameter) not in chosen:
                continue
            copy = parameter.detach().clone().requires_grad_()
            copy.grad = parameter.grad.detach().clone()
            state = optimizer.state.get(parameter, {})
            states[copy] = {name: _copy_state(value, copy, form) for name, value in state.items()}
            copies.append(copy)
        options = {name: value for name, value in group.items() if name != "params"}
        if form:
            options.update({name: name == form for name in ("fused", "foreach") if name in options})
        if copies:
            groups.append({**options, "params": copies})
    if not groups:
        return None
    made = type(optimizer)(groups, **_arguments(optimizer))
    for group, wanted in zip(made.param_groups, groups, strict=True):
        group.update({name: value for name, value in wanted.items() if name != "params"})
    made.state.update(states)
    return made


def _arguments(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Some optimizers have no default for the learning rate."""
    return {"lr": optimizer.defaults["lr"]} if "lr" in optimizer.defaults else {}


def _copy_state(value: Any, parameter: torch.Tensor, form: str) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    copy = value.detach().clone()
    return copy.to(parameter.device) if form == "fused" else copy


def _time(optimizer: Any, device: Device, repeats: int) -> float:
    device.synchronize()
    began = time.perf_counter()
    for _ in range(repeats):
        optimizer.step()
    device.synchronize()
    return (time.perf_counter() - began) / repeats
