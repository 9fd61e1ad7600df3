"""What is one step? Inference and training steps, in full and mixed precision."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch.nn.utils.rnn import PackedSequence

from diagnose.measure.machine.device import Device
from diagnose.measure.machine.products import float32_setting
from diagnose.measure.stages.plan import Context, InvalidStage
from diagnose.workload import Batch, Network

# A scale this small means that the scaler has halved it at nearly every step.
SMALLEST_SCALE = 1.0


def full_precision(device: Device) -> str:
    """What a float32 product is computed in: a workload may have switched TF32 on."""
    if device.kind != "cuda":
        return "float32"
    return "float32" if float32_setting() == "highest" else "tf32"


def to_device(batch: Batch, device: torch.device, *, non_blocking: bool = False) -> Batch:
    """Move every tensor of a nested batch; leave the rest as it is."""
    if isinstance(batch, torch.Tensor):
        return batch.to(device, non_blocking=non_blocking)
    if isinstance(batch, PackedSequence):  # a tuple that must move as one
        return batch.to(device, non_blocking=non_blocking)  # type: ignore[arg-type]
    if isinstance(batch, Mapping):
        return {k: to_device(v, device, non_blocking=non_blocking) for k, v in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(to_device(v, device, non_blocking=non_blocking) for v in batch))
    if isinstance(batch, (list, tuple)):
        return type(batch)(to_device(v, device, non_blocking=non_blocking) for v in batch)
    return batch


class InferenceStep:
    """The forward pass without gradients."""

    def __init__(self, context: Context, network: Network, next_batch: Callable[[], Batch]) -> None:
        self._model = context.model(network)
        self._forward = network.forward or network.loss
        self._next_batch = next_batch
        self.dtype = full_precision(context.device)

    def prepare(self) -> None:
        self._model.eval()

    def __call__(self) -> None:
        with torch.no_grad():
            self._forward(self._model, self._next_batch())


class TrainingStep:
    """Forward, backward, optimiser step: what one iteration of the job does."""

    def __init__(
        self,
        context: Context,
        network: Network,
        next_batch: Callable[[], Batch],
        *,
        mixed: bool = False,
        loss: Callable[[Batch], torch.Tensor] | None = None,
    ) -> None:
        """`loss` is that of the network in another wrapping."""
        self._network = network
        self._own_loss = loss
        self._model = context.model(network)
        self._optimizer = context.optimizer(network)
        self._norm_most = context.workload.gradient_norm_most
        self._next_batch = next_batch
        self._device = context.device
        self._mixed = mixed
        self._scaler = loss_scaler(context.device) if mixed else None
        self._loss: torch.Tensor | None = None
        self._steps = 0

    @property
    def dtype(self) -> str:
        return precision_name(self._device) if self._mixed else full_precision(self._device)

    def prepare(self) -> None:
        self._model.train()

    def __call__(self) -> None:
        batch = self._next_batch()
        with self._autocast():
            if self._own_loss is None:
                loss = self._network.loss(self._model, batch)
            else:
                loss = self._own_loss(batch)
        if not isinstance(loss, torch.Tensor):
            raise TypeError(
                f"the workload's loss returned a {type(loss).__name__}; it must return one tensor"
            )
        if self._scaler is None:
            loss.backward()  # type: ignore[no-untyped-call]
            self._clip()
            self._optimizer.step()
        else:
            self._scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
            if self._norm_most is not None:
                self._scaler.unscale_(self._optimizer)
            self._clip()
            self._scaler.step(self._optimizer)
            self._scaler.update()
        self._optimizer.zero_grad()
        self._loss = loss.detach()
        self._steps += 1

    def _clip(self) -> None:
        if self._norm_most is not None:
            torch.nn.utils.clip_grad_norm_(self._model.parameters(), self._norm_most)

    def check(self) -> None:
        """Between slots, where a synchronisation costs nothing: is the loss still a number?"""
        if self._loss is not None and not bool(torch.isfinite(self._loss).all()):
            raise InvalidStage(
                f"the loss is {float(self._loss):g} after {self._steps} steps; "
                "a step whose loss is not finite does not do the job's work"
            )
        if self._scaler is not None and self._scaler.get_scale() < SMALLEST_SCALE:
            raise InvalidStage(
                f"the GradScaler skipped nearly all of {self._steps} optimiser steps because the "
                "gradients are not finite; a skipped step is cheaper than a real one"
            )

    def _autocast(self) -> AbstractContextManager[Any]:
        if not self._mixed:
            return nullcontext()
        return torch.autocast(self._device.kind, dtype=self._device.low_precision)


def loss_scaler(device: Device) -> torch.amp.GradScaler | None:
    """Only float16 needs one: bfloat16 has the exponent range of float32."""
    if device.low_precision is torch.float16:
        return torch.amp.GradScaler(device.kind)
    return None


def precision_name(device: Device) -> str:
    name = str(device.low_precision).removeprefix("torch.")
    scaled = " + GradScaler" if device.low_precision is torch.float16 else ""
    return f"{name} autocast{scaled}"
