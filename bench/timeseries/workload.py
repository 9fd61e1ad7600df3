"""Why does the device starve? An LSTM so small that everything around it takes the time."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bench.timeseries.epoch import read_parts
from bench.timeseries.model import build_model
from bench.timeseries.series import find_target, read
from bench.timeseries.settings import Settings
from bench.timeseries.training import GRADIENT_NORM_MOST
from bench.timeseries.windows import Windows
from diagnose.workload import Batch, DataSummary, Network, Size, Treatment, Workload

# What bench/timeseries/windows.py makes of the default series.
FEATURES = 35
SEED = 0

SIZES = {
    # The job as it was before its authors made it faster; 4 years instead of their 10. Tens of
    # milliseconds per training step on two CPU cores, so there is no smaller one for those.
    "seed": Size(
        batch_size=128,
        sequence_length=30,
        shape={"features": FEATURES, "hidden": 64, "layers": 2},
    ),
    # For tests.
    "tiny": Size(
        batch_size=8,
        sequence_length=7,
        shape={"features": FEATURES, "hidden": 8, "layers": 2},
    ),
}


def build(size: Size) -> nn.Module:
    return build_model(Settings.from_size(size), size.shape["features"])


def loss(model: nn.Module, batch: Batch) -> Tensor:
    days, targets = batch
    return F.mse_loss(model(days), targets)


def forward(model: nn.Module, batch: Batch) -> Tensor:
    days, _ = batch
    result: Tensor = model(days)
    return result


def synthetic_batch(size: Size, device: torch.device) -> list[Tensor]:
    """Random numbers of the scale that the scalers leave."""
    generator = torch.Generator().manual_seed(SEED)
    settings = Settings.from_size(size)
    shape = (settings.batch_size, settings.sequence, size.shape["features"])
    days = torch.randn(shape, generator=generator)
    targets = torch.randn(settings.batch_size, generator=generator)
    return [days.to(device), targets.to(device)]


def open_windows(size: Size, path: Path | None) -> Windows:
    """The training windows, with as many features as the size has."""
    windows = read_parts(Settings.from_size(size), path).training
    days = fit_width(windows.days, size.shape["features"])
    return Windows(days, windows.targets, windows.measured, windows.sequence)


def fit_width(days: Tensor, features: int) -> Tensor:
    """Zeros for features that the series does not have; those that are too many are left out.

    The model is built before the file is opened, and its width decides what a step costs.
    """
    return F.pad(days, (0, features - days.shape[1]))


def describe_data(size: Size, path: Path | None) -> DataSummary:
    series = read(path)
    settings = Settings.from_size(size)
    parts = read_parts(settings, path)
    found, used = len(parts.feature_names), size.shape["features"]
    note = "" if found == used else f" (the model of this size takes {used})"
    return DataSummary(
        description=(
            f"{series.description}: {find_target(series)} of the next day from {found} "
            f"features{note} of {settings.sequence} days, training part"
        ),
        sha256=series.sha256,
        sentences=len(series),
        rows=len(parts.training),
        erroneous_rows=0,
        length_quantiles={"p50": settings.sequence, "max": settings.sequence},
        padding_share=0.0,
        unit="days",
        length_unit="days",
    )


def treatment() -> Treatment:
    from bench.optimizations.timeseries import TREATMENT

    return TREATMENT


WORKLOAD = Workload(
    name="timeseries",
    sizes=SIZES,
    model=Network(build=build, loss=loss, forward=forward),
    synthetic_batch=synthetic_batch,
    datasets={"windows": open_windows},
    describe_data=describe_data,
    learning_rate=1e-3,
    gradient_norm_most=GRADIENT_NORM_MOST,
    treatment=treatment,
)
