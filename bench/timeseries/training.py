"""How does the model learn? Adam on the squared error, step by step, until it stops improving.

forward under autocast -> scaled backward -> unscale -> clip -> step. Losses stay on the device
until the epoch is over.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice

import torch
from torch import Tensor, nn
from torch._dynamo.exc import TorchDynamoException
from torch._dynamo.utils import counters

from bench.timeseries.model import AttentionRegressor, build_model
from bench.timeseries.settings import Settings
from bench.timeseries.windows import Batch, Parts, open_loader
from bench.train_command import TrainingFailed
from diagnose.workload import WorkloadError

GRADIENT_NORM_MOST = 1.0
PATIENCE = 20  # epochs without a better validation loss


def autocast(device: torch.device, enabled: bool) -> torch.autocast:
    """float16 on CUDA, where the gradients are scaled for it; bfloat16 elsewhere."""
    dtype = torch.float16 if device.type == "cuda" else torch.bfloat16
    return torch.autocast(device.type, dtype=dtype, enabled=enabled)


def find_amp_obstacle(device: torch.device, *, fused_lstm: bool) -> str:
    """Why mixed precision does not work here, or "". Tried, not guessed from the model name."""
    if device.type != "cpu" or not fused_lstm:
        return ""
    try:
        with torch.no_grad(), autocast(device, True):
            nn.LSTM(1, 1)(torch.zeros(1, 1, 1))
    except RuntimeError:
        # Without AVX-512 oneDNN can only raise; PyTorch does not fall back to its own LSTM.
        return "oneDNN has no bfloat16 LSTM for this processor (it needs AVX-512)"
    return ""


@contextmanager
def use_tf32(enabled: bool) -> Iterator[None]:
    """Whether float32 products may be rounded to TF32: in matrices and in cuDNN's recurrence."""
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32
    matmul.allow_tf32 = cudnn.allow_tf32 = enabled
    try:
        yield
    finally:
        matmul.allow_tf32, cudnn.allow_tf32 = before


@dataclass
class Trainer:
    """A model in training."""

    settings: Settings
    device: torch.device
    model: AttentionRegressor
    predict: Callable[[Tensor], Tensor]  # the model, or what torch.compile made of it
    optimizer: torch.optim.Optimizer
    scaler: torch.amp.GradScaler


@dataclass(frozen=True)
class Progress:
    """How one epoch ended."""

    epoch: int  # from 1
    training_loss: float  # mean squared error of the scaled target
    validation_loss: float
    best_epoch: int


def make_trainer(settings: Settings, features: int, device: torch.device, seed: int) -> Trainer:
    obstacle = find_amp_obstacle(device, fused_lstm=settings.fused_lstm) if settings.amp else ""
    if obstacle:
        raise WorkloadError(f"mixed precision cannot be used: {obstacle}; leave it out")
    torch.manual_seed(seed)
    # Built on the host, so that every device starts from the same weights.
    model = build_model(settings, features).to(device)
    compiled = torch.compile(model, mode=settings.compile) if settings.compile else model
    # float16 loses small gradients, bfloat16 does not; only CUDA computes in float16 here.
    scaler = torch.amp.GradScaler("cuda", enabled=settings.amp and device.type == "cuda")
    optimizer = torch.optim.Adam(model.parameters(), lr=settings.learning_rate)
    return Trainer(settings, device, model, compiled, optimizer, scaler)


def accumulate_gradients(trainer: Trainer, batches: Sequence[Batch]) -> Tensor:
    """Backward through the mean over all windows of the batches; the squared errors, unread.

    Every window counts the same, so a smaller last batch leaves the big batch's gradients.
    """
    total = sum(len(targets) for _, targets in batches)
    seen = []
    for batch in batches:
        days, targets = (each.to(trainer.device, non_blocking=True) for each in batch)
        with autocast(trainer.device, trainer.settings.amp):
            predictions = trainer.predict(days)
        errors = (predictions.float() - targets).square()
        trainer.scaler.scale(errors.sum() / total).backward()  # type: ignore[no-untyped-call]
        seen.append(errors.detach())
    return torch.cat(seen)


def apply_gradients(trainer: Trainer) -> None:
    trainer.scaler.unscale_(trainer.optimizer)
    nn.utils.clip_grad_norm_(trainer.model.parameters(), GRADIENT_NORM_MOST)
    trainer.scaler.step(trainer.optimizer)
    trainer.scaler.update()
    trainer.optimizer.zero_grad(set_to_none=trainer.settings.set_to_none)


def train(trainer: Trainer, loader: Iterable[Batch]) -> Iterator[Tensor]:
    """One optimiser step for each item taken: the squared errors of its windows, unread."""
    trainer.model.train()
    for group in group_batches(loader, trainer.settings.accumulate):
        errors = accumulate_gradients(trainer, group)
        apply_gradients(trainer)
        yield errors


def group_batches(loader: Iterable[Batch], size: int) -> Iterator[list[Batch]]:
    """As many batches as one optimiser step uses; the last group may be smaller."""
    batches = iter(loader)
    while group := list(islice(batches, size)):
        yield group


def predict_all(trainer: Trainer, loader: Iterable[Batch]) -> Tensor:
    """The scaled predictions for every window, on the host; dropout is off meanwhile."""
    return _collect(trainer, loader, trainer.predict)


def weigh_days(trainer: Trainer, loader: Iterable[Batch]) -> Tensor:
    """The mean attention that each place of a window gets, the latest day last; on the host."""
    return _collect(trainer, loader, lambda days: trainer.model.attend(days)[1]).mean(dim=0)


@torch.no_grad()
def _collect(trainer: Trainer, loader: Iterable[Batch], ask: Callable[[Tensor], Tensor]) -> Tensor:
    """The answers for all windows, on the host: moved there once at the end, or batch by batch."""
    was_training = trainer.model.training
    trainer.model.eval()
    answers = []
    for days, _ in loader:
        with autocast(trainer.device, trainer.settings.amp):
            answer = ask(days.to(trainer.device, non_blocking=True))
        answers.append(answer if trainer.settings.evaluate_on_device else answer.cpu())
    trainer.model.train(was_training)
    return torch.cat(answers).float().cpu()


def fit(
    trainer: Trainer, parts: Parts, seed: int, epochs: int, patience: int = PATIENCE
) -> Iterator[Progress]:
    """Epochs until `patience` of them brought nothing; then the best weights are put back."""
    training = open_loader(trainer.settings, parts.training, trainer.device, seed)
    validation = open_loader(trainer.settings, parts.validation, trainer.device)
    best_loss, best_epoch = math.inf, 0
    best_weights = copy.deepcopy(trainer.model.state_dict())
    for epoch in range(1, epochs + 1):
        training_loss = float(torch.cat(list(train(trainer, training))).mean())
        predictions = predict_all(trainer, validation)
        loss = float((predictions - parts.validation.targets).square().mean())
        if not math.isfinite(loss):
            raise TrainingFailed(
                f"the validation loss of epoch {epoch} is not finite; "
                "try a smaller --learning-rate or leave out --amp"
            )
        if loss < best_loss:
            best_loss, best_epoch = loss, epoch
            best_weights = copy.deepcopy(trainer.model.state_dict())
        yield Progress(epoch, training_loss, loss, best_epoch)
        if epoch - best_epoch >= patience:
            break
    trainer.model.load_state_dict(best_weights)


def fall_back_to_eager(trainer: Trainer, batch: Batch) -> str:
    """Compile by a first pass, forward and backward; what became of it, in one sentence.

    torch.compile itself only wraps: whether there is a compiler, and whether anything could be
    compiled, shows when a batch arrives.
    """
    counters.clear()
    trainer.model.train()
    try:
        accumulate_gradients(trainer, [batch])
    except TorchDynamoException as error:
        trainer.predict = trainer.model
        return f"torch.compile failed, going on without it: {_first_line(str(error))}"
    finally:
        trainer.optimizer.zero_grad()
    graphs = counters["stats"]["unique_graphs"]
    breaks = counters["graph_break"]
    told = f"torch.compile, mode {trainer.settings.compile}: {graphs} graphs compiled"
    if breaks:
        told += f", {sum(breaks.values())} breaks, the first: {_first_line(next(iter(breaks)))}"
    return told


def _first_line(text: str) -> str:
    return text.strip().partition("\n")[0]
