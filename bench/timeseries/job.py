"""What happens in one run? Train one model or eight, keep the best, judge it on the last days."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import product

import torch
from rich.console import Console
from torch import Tensor

from bench.timeseries.arguments import Options
from bench.timeseries.series import find_target, read
from bench.timeseries.settings import Settings
from bench.timeseries.training import (
    Trainer,
    fall_back_to_eager,
    fit,
    make_trainer,
    predict_all,
    use_tf32,
    weigh_days,
)
from bench.timeseries.windows import Parts, cut, open_loader
from diagnose.workload import WorkloadError

# The grid of --grid: eight models, judged on the validation part.
HIDDEN = (128, 256)
LAYERS = (2, 3)
LEARNING_RATES = (1e-3, 5e-3)


@dataclass(frozen=True)
class Metrics:
    """In the units of the target; None where a question has no answer: `undefined` says why."""

    r2: float | None  # share of the target's variance that the predictions explain, at most 1
    rmse: float
    mae: float
    mape: float | None  # mean |error| / |target|
    days: int
    undefined: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        """R² 0.712  RMSE 2.9 …; a question without an answer says why."""
        r2 = f"R² {self.r2:.3f}" if self.r2 is not None else f"R² – ({self.undefined['r2']})"
        mape = (
            f"MAPE {self.mape:.1%}"
            if self.mape is not None
            else f"MAPE – ({self.undefined['mape']})"
        )
        return f"{r2}  RMSE {self.rmse:.3g}  MAE {self.mae:.3g}  {mape}  over {self.days} days"


def run(options: Options) -> None:
    device = _choose_device(options.device)
    series = read(options.csv)
    target = find_target(series, options.target)
    settings = options.settings
    parts = cut(series, target, settings.sequence)
    print(
        f"{series.description}: {len(series)} days, {len(parts.feature_names)} features, "
        f"{len(parts.training)} / {len(parts.validation)} / {len(parts.test)} windows of "
        f"{settings.sequence} days; predicting {target} of the next day on {device}"
    )
    with use_tf32(settings.tf32):
        trainer = (_train_grid if options.grid else _train_one)(options, parts, device)
        test = open_loader(trainer.settings, parts.test, device)
        predictions = parts.target_scaler.undo(predict_all(trainer, test).double())
        weights = weigh_days(trainer, test)
    print(f"test: {measure(parts.test.measured, predictions)}")
    print(f"attention: {describe_attention(weights)}")


def _train_one(options: Options, parts: Parts, device: torch.device) -> Trainer:
    trainer = make_trainer(options.settings, len(parts.feature_names), device, options.seed)
    if options.settings.compile:
        batch = next(iter(open_loader(trainer.settings, parts.training, device)))
        print(fall_back_to_eager(trainer, batch))
    console = Console(stderr=True)
    with console.status("training") as status:
        for each in fit(trainer, parts, options.seed, options.epochs, options.patience):
            line = (
                f"epoch {each.epoch} of {options.epochs}  training loss {each.training_loss:.4f}  "
                f"validation loss {each.validation_loss:.4f}  best epoch {each.best_epoch}"
            )
            if console.is_terminal:
                status.update(line)
            else:
                print(line, file=sys.stderr, flush=True)
    print(f"stopped after epoch {each.epoch}; the weights are those of epoch {each.best_epoch}")
    return trainer


def list_candidates(base: Settings) -> list[Settings]:
    return [
        replace(base, hidden=hidden, layers=layers, learning_rate=rate)
        for hidden, layers, rate in product(HIDDEN, LAYERS, LEARNING_RATES)
    ]


def _train_grid(options: Options, parts: Parts, device: torch.device) -> Trainer:
    """Every candidate from the same seed; the one with the least validation loss."""
    least, best = math.inf, None
    for settings in list_candidates(options.settings):
        trainer = make_trainer(settings, len(parts.feature_names), device, options.seed)
        run = fit(trainer, parts, options.seed, options.epochs, options.patience)
        losses = [each.validation_loss for each in run]
        print(
            f"{_describe_model(settings)}: validation loss {min(losses):.4f} "
            f"after {len(losses)} epochs",
            flush=True,
        )
        if min(losses) < least:
            least, best = min(losses), trainer
    assert best is not None
    print(f"best: {_describe_model(best.settings)}")
    return best


def _describe_model(settings: Settings) -> str:
    return (
        f"hidden {settings.hidden}, layers {settings.layers}, dropout {settings.dropout:g}, "
        f"learning rate {settings.learning_rate:g}"
    )


def measure(targets: Tensor, predictions: Tensor) -> Metrics:
    targets, predictions = targets.double(), predictions.double()
    errors = predictions - targets
    spread = float((targets - targets.mean()).square().sum())
    zeros = int((targets == 0).sum())
    undefined = {}
    if bool((targets == targets[0]).all()):
        undefined["r2"] = f"the target is {float(targets[0]):g} on every day"
    if zeros:
        undefined["mape"] = f"the target is 0 on {zeros} day{'s' if zeros > 1 else ''}"
    return Metrics(
        r2=None if "r2" in undefined else 1 - float(errors.square().sum()) / spread,
        rmse=math.sqrt(float(errors.square().mean())),
        mae=float(errors.abs().mean()),
        mape=None if zeros else float((errors / targets).abs().mean()),
        days=len(targets),
        undefined=undefined,
    )


def describe_attention(weights: Tensor, count: int = 3) -> str:
    """The days with the most attention: 'the last day 21 %, 2 days before it 9 %'."""
    names = []
    for place in weights.argsort(descending=True)[:count].tolist():
        before = len(weights) - 1 - place
        when = f"{before} day{'s' if before > 1 else ''} before it" if before else "the last day"
        names.append(f"{when} {weights[place]:.0%}")
    return ", ".join(names)


def _choose_device(name: str | None) -> torch.device:
    try:
        device = torch.device(name or ("cuda" if torch.cuda.is_available() else "cpu"))
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise WorkloadError(f"device '{name}' cannot be used; try --device cpu") from error
    return device
