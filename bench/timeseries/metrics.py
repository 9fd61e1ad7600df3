"""How good are the predictions? Four numbers, or the reason why one of them does not exist."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor


@dataclass(frozen=True)
class Metrics:
    """In the units of the target; None where a question has no answer: `undefined` says why."""

    r2: float | None  # share of the target's variance that the predictions explain, at most 1
    rmse: float
    mae: float
    mape: float | None  # mean |error| / |target|
    days: int
    undefined: Mapping[str, str] = field(default_factory=dict)


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


def describe(metrics: Metrics) -> str:
    """R² 0.712  RMSE 2.9 …; a question without an answer says why."""
    r2 = _format("R²", metrics.r2, ".3f", metrics.undefined.get("r2"))
    mape = _format("MAPE", metrics.mape, ".1%", metrics.undefined.get("mape"))
    errors = f"RMSE {metrics.rmse:.3g}  MAE {metrics.mae:.3g}"
    return f"{r2}  {errors}  {mape}  over {metrics.days} days"


def _format(name: str, value: float | None, form: str, reason: str | None) -> str:
    return f"{name} – ({reason})" if value is None else f"{name} {value:{form}}"
