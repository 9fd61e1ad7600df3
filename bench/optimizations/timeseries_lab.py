"""How is a setting of the recurrent model tried? One epoch over the same samples, on both sides."""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bench.optimizations.lab import Changes, Facts, Outcome, opened, watch_compiling
from bench.timeseries.epoch import Epoch, gradients, loss_curve, open_epoch, read_parts
from bench.timeseries.settings import Settings
from bench.timeseries.training import (
    Trainer,
    accumulate_gradients,
    apply_gradients,
    find_amp_obstacle,
    make_trainer,
)
from bench.timeseries.windows import Batch, open_loader
from diagnose.workload import Fact, Lab, OpenTrial, Trial

EPOCH = "training epoch"

# As the published guide had it before; model and sequence are those of the size.
BASE: Changes = {"batch_size": 128, "workers": 4, "keep_workers": True}
# Results do not depend on who loads the windows, and starting workers for them takes longer.
ALONE: Changes = {"workers": 0}
# Gradients of the third step: by then, what a step should have cleared would show.
PROVEN_STEPS = 3
# About four passes over the default series: enough to see whether a large batch falls behind.
CURVE_SAMPLES = 4096
STARTS = 3


def open_epochs(settings: Settings, lab: Lab) -> AbstractContextManager[Epoch]:
    """Epochs of the whole series, on every device."""
    return open_epoch(settings, lab.device, lab.seed, read_parts(settings, lab.data))


def settings_of(lab: Lab, *changes: Changes) -> Settings:
    values = asdict(Settings.from_size(lab.size))
    for each in (BASE, *changes):
        values.update(each)
    return Settings(**values)


# --- what is timed ---


def open_settings(changes: Changes, scope: str = EPOCH) -> OpenTrial:
    """A trial of the base with these changes."""
    run: Mapping[str, Callable[[Epoch], object]] = {
        EPOCH: Epoch.step,
        "evaluation": Epoch.evaluate,
        "importance": Epoch.weigh_days,
    }

    @contextmanager
    def trial(lab: Lab) -> Iterator[Trial]:
        settings = settings_of(lab, changes)
        if settings.compile:
            torch.compiler.reset()
        with open_epochs(settings, lab) as epoch:
            step = functools.partial(run[scope], epoch)
            samples = epoch.samples if scope == EPOCH else len(epoch.evaluate())
            yield Trial(step, samples, waited=lambda: epoch.waits.seconds)

    return trial


def resident_step(changes: Changes, *, graphed: bool = False) -> OpenTrial:
    """A trial of one training step on a batch that stays on the device."""

    def make(lab: Lab) -> Trial:
        trainer, batch = _resident(lab, changes, graphed=graphed)
        return Trial(lambda: _step(trainer, batch), len(batch[1]))

    return opened(make)


def _resident(lab: Lab, changes: Changes, *, graphed: bool) -> tuple[Trainer, Batch]:
    # Without dropout: a captured graph draws its random numbers in its own way.
    settings = settings_of(lab, changes, {"dropout": 0.0, "set_to_none": True})
    parts = read_parts(settings, lab.data)
    loaded = next(iter(open_loader(settings, parts.training, lab.device, lab.seed)))
    batch = [each.to(lab.device) for each in loaded]
    trainer = make_trainer(settings, len(parts.feature_names), lab.device, lab.seed)
    trainer.model.train()
    if graphed:
        graph: Any = torch.cuda.make_graphed_callables(trainer.model, (batch[0],))
        trainer.predict = graph
    return trainer, batch


def _step(trainer: Trainer, batch: Batch) -> None:
    accumulate_gradients(trainer, [batch])
    apply_gradients(trainer)


# --- what must be equal ---


def step_outcome(changes: Changes, *, graphed: bool) -> Outcome:
    """The weights after some steps on the resident batch."""

    def outcome(lab: Lab) -> Mapping[str, Tensor]:
        trainer, batch = _resident(lab, changes, graphed=graphed)
        for _ in range(PROVEN_STEPS):
            _step(trainer, batch)
        weights = [each.detach().reshape(-1) for each in trainer.model.parameters()]
        return {"weights": torch.cat(weights)}

    return outcome


def gradient_outcome(changes: Changes, steps: int = PROVEN_STEPS) -> Outcome:
    def outcome(lab: Lab) -> Mapping[str, Tensor]:
        # Workers are started only where they are what is proven.
        settings = settings_of(lab, ALONE, changes)
        if settings.compile:
            torch.compiler.reset()
        found = gradients(settings, lab.device, lab.seed, lab.data, steps=steps)
        return {"gradients": torch.cat([each.reshape(-1).float() for each in found.values()])}

    return outcome


def prediction_outcome(changes: Changes) -> Outcome:
    """Predictions for the validation part after one epoch: they may differ; it shows how far."""

    def outcome(lab: Lab) -> Mapping[str, Tensor]:
        settings = settings_of(lab, changes, ALONE)
        with open_epochs(settings, lab) as epoch:
            epoch.train()
            return {"per sample predictions": epoch.evaluate()}

    return outcome


# --- what is recorded beside the times ---


def curves(*sides: tuple[str, Changes]) -> Callable[[Lab], Mapping[str, tuple[float, ...]]]:
    return lambda lab: {name: _curve(lab, changes) for name, changes in sides}


def _curve(lab: Lab, changes: Changes) -> tuple[float, ...]:
    return _cached_curve(settings_of(lab, changes, ALONE), lab.device, lab.seed, lab.data)


# The job as it was stands beside every other.
@functools.cache
def _cached_curve(
    settings: Settings, device: torch.device, seed: int, data: Path | None
) -> tuple[float, ...]:
    return loss_curve(settings, device, seed, CURVE_SAMPLES, data)


def batch_facts(after: int) -> Facts:
    return lambda lab: {"before_batch_size": BASE["batch_size"], "after_batch_size": after}


def model_facts(changes: Changes) -> Facts:
    """That it is another model, and the work of both."""

    def facts(lab: Lab) -> Mapping[str, Fact]:
        return {
            "changes_model": True,
            "before_flops_per_sample": flops_per_sample(lab, settings_of(lab)),
            "after_flops_per_sample": flops_per_sample(lab, settings_of(lab, changes)),
        }

    return facts


def flops_per_sample(lab: Lab, settings: Settings) -> int:
    """Of the matrix products of the recurrence; backward does twice the work of forward.

    Counted by hand: a fused LSTM is one operator, and torch's counter does not know it.
    """
    width = len(read_parts(settings, lab.data).feature_names)
    hidden, products = settings.hidden, 0
    for _ in range(settings.layers):
        products += 4 * hidden * (width + hidden)
        width = hidden
    return 3 * 2 * products * settings.sequence


def loader_facts(before: int, after: int) -> Facts:
    """What an epoch pays before its first batch arrives, and what was done once before it."""

    def facts(lab: Lab) -> Mapping[str, Fact]:
        began = time.monotonic()
        parts = read_parts(settings_of(lab), lab.data)
        prepared = time.monotonic() - began
        return {
            f"first_batch_with_{before}_workers_seconds": _first_batch_seconds(lab, before),
            f"first_batch_with_{after}_workers_seconds": _first_batch_seconds(lab, after),
            "preprocessing_seconds": round(prepared, 4),
            "windows": len(parts.training),
        }

    return facts


def _first_batch_seconds(lab: Lab, workers: int) -> float:
    settings = settings_of(lab, {"workers": workers})
    windows = read_parts(settings, lab.data).training
    seconds = []
    for _ in range(STARTS):
        began = time.monotonic()
        next(iter(open_loader(settings, windows, lab.device, lab.seed)))
        seconds.append(time.monotonic() - began)
    return round(statistics.median(seconds), 4)


def compile_facts(changes: Changes) -> Facts:
    def facts(lab: Lab) -> Mapping[str, Fact]:
        with open_epochs(settings_of(lab, changes, ALONE), lab) as epoch:
            return watch_compiling(epoch.step, str(changes["compile"]))

    return facts


def amp_obstacle(lab: Lab) -> str:
    return find_amp_obstacle(lab.device, fused_lstm=True)


def tf32_obstacle(lab: Lab) -> str:
    """TF32 came with compute capability 8.0."""
    if lab.device.type != "cuda":
        return f"TF32 is a mode of NVIDIA GPUs, and this is {lab.device.type}"
    major, minor = torch.cuda.get_device_capability(lab.device)
    if major < 8:
        return f"TF32 needs compute capability 8.0, and this GPU has {major}.{minor}"
    return ""
