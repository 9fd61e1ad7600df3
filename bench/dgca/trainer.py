"""How does one batch change the model? The step, and the loop that repeats it to the end.

forward under autocast -> scaled backward -> unscale -> clip -> step -> the next learning rate.
Losses and gradient norms stay on the device; the host reads them every --log-steps steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from itertools import islice

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from bench.dgca.config import GRADIENT_NORM_MOST, DGCAConfig
from bench.dgca.loss import compute_loss
from bench.dgca.masking import MaskForm, prepare_batch
from bench.dgca.model import DGCA
from bench.dgca.state import TrainingState
from bench.train_command import TrainingFailed

Batch = dict[str, Tensor]

# A scaler that starts at 2**16 may halve that often before float16 can hold the gradients;
# if every step up to here was skipped, waiting longer only costs.
HOPELESS_STEPS = 40


class Objective(nn.Module):
    """The model together with its loss: what DDP wraps, so that its output is one number."""

    def __init__(self, model: DGCA, config: DGCAConfig) -> None:
        super().__init__()
        self.model = model
        self.config = config

    def forward(self, batch: Batch) -> Tensor:
        return compute_loss(self.model(batch), batch, self.config).total


@dataclass(frozen=True)
class Schedule:
    """From the full learning rate in a straight line to zero after the last step."""

    learning_rate: float
    steps: int

    def at(self, step: int) -> float:
        return self.learning_rate * (1 - step / self.steps)


@dataclass
class Unread:
    """Losses and gradient norms that the host has not looked at yet."""

    losses: list[Tensor] = field(default_factory=list)
    norms: list[Tensor] = field(default_factory=list)

    def read(self) -> tuple[list[float], list[float]]:
        """One wait for the device, however many steps have passed."""
        if not self.losses:
            return [], []
        losses, norms = torch.stack([*self.losses, *self.norms]).float().view(2, -1).tolist()
        self.losses, self.norms = [], []
        return losses, norms


def accumulate_gradients(
    objective: nn.Module, batches: Sequence[Batch], scaler: torch.amp.GradScaler, half: bool
) -> Tensor:
    """Backward through the mean of the micro-batches' losses; the mean, on the device.

    Each micro-batch has the same weight, as in the original, whatever its number of characters.
    """
    total = None
    for place, batch in enumerate(batches, start=1):
        # The forward pass must be inside too: it decides whether the backward pass synchronises.
        waits = isinstance(objective, DistributedDataParallel) and place < len(batches)
        with objective.no_sync() if waits else nullcontext():  # type: ignore[operator]
            with autocast(batch["input_ids"].device, half):
                loss: Tensor = objective(batch) / len(batches)
            scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
        total = loss.detach() if total is None else total + loss.detach()
    assert total is not None
    return total


def autocast(device: torch.device, half: bool) -> torch.autocast:
    dtype = torch.float16 if device.type == "cuda" else torch.bfloat16
    return torch.autocast(device.type, dtype=dtype, enabled=half)


def apply_gradients(state: TrainingState, learning_rate: float) -> Tensor:
    """Change the parameters, unless a gradient is not finite; the norm, on the device."""
    parameters = [each for group in state.optimizer.param_groups for each in group["params"]]
    for group in state.optimizer.param_groups:
        group["lr"] = learning_rate
    state.scaler.unscale_(state.optimizer)
    norm = nn.utils.clip_grad_norm_(parameters, GRADIENT_NORM_MOST)
    if state.scaler.is_enabled():
        state.scaler.step(state.optimizer)
        state.scaler.update()
    # Without a scaler nobody else looks; one such step would ruin every parameter for good.
    elif bool(norm.isfinite()):
        state.optimizer.step()
    state.optimizer.zero_grad()
    return norm


def train(
    state: TrainingState,
    objective: nn.Module,
    loader: Iterable[Batch],
    schedule: Schedule,
    accumulation: int,
    half: bool,
    prepare: Callable[[Batch], Batch],
) -> Iterator[tuple[Tensor, Tensor]]:
    """One optimiser step for each item taken: its loss and gradient norm, unread."""
    batches = iter(loader)
    while window := [prepare(batch) for batch in islice(batches, accumulation)]:
        loss = accumulate_gradients(objective, window, state.scaler, half)
        norm = apply_gradients(state, schedule.at(state.step))
        state.step += 1
        yield loss, norm


def note(state: TrainingState, losses: Sequence[float], norms: Sequence[float]) -> None:
    """Count what went wrong, and give up if nothing ever went right."""
    state.nonfinite_losses += sum(not math.isfinite(loss) for loss in losses)
    state.skipped_steps += sum(not math.isfinite(norm) for norm in norms)
    if state.step >= HOPELESS_STEPS:
        require_progress(state)


def require_progress(state: TrainingState) -> None:
    if 0 < state.step == state.skipped_steps:
        raise TrainingFailed(
            f"the gradients of all {state.step} steps were not finite, so nothing was learnt; "
            "try without --fp16 or with a smaller --learning-rate"
        )


def move_and_mask(batch: Batch, state: TrainingState, mask_form: MaskForm | None) -> Batch:
    """The batch on the device; with --mft some source characters are hidden and remembered."""
    moved = {name: each.to(state.device, non_blocking=True) for name, each in batch.items()}
    return moved if mask_form is None else prepare_batch(moved, mask_form, state.masking)
