"""Hourly readings of the gauges, and windows of them."""

import numpy as np
import pandas as pd
import torch
from torch.utils.data import IterableDataset


def read_gauges(settings):
    """Two tides a day, the moon, the wind, and a gauge that drifts now and then."""
    rng = np.random.default_rng(settings.seed)
    hours = np.arange(settings.hours)
    columns = {}
    for gauge in range(settings.gauges):
        phase = rng.uniform(0, 2 * np.pi)
        tide = np.sin(2 * np.pi * hours / 12.42 + phase) * (1.5 + 0.1 * gauge)
        moon = 1 + 0.3 * np.sin(2 * np.pi * hours / 354.4)
        wind = np.convolve(rng.normal(0, 0.6, settings.hours), np.ones(9) / 9, mode="same")
        drift = np.cumsum(rng.normal(0, 0.01, settings.hours))
        columns[f"gauge_{gauge:02d}"] = tide * moon + wind + drift
    return pd.DataFrame(
        columns, index=pd.date_range("2020-01-01", periods=settings.hours, freq="h")
    )


def standardise(table, hours):
    """Readings relative to what was usual in the hours before."""
    usual = table.rolling(hours, min_periods=1).mean()  # cost: input
    spread = table.rolling(hours, min_periods=1).std().fillna(1.0)
    return (table - usual) / (spread + 1e-3)


class GaugeWindows(IterableDataset):
    """Windows that begin anywhere, and the tide at the first gauge afterwards."""

    def __init__(self, table, settings):
        self.table = table
        self.settings = settings

    def __iter__(self):
        rng = np.random.default_rng(self.settings.seed)
        settings = self.settings
        span = settings.window + settings.horizon
        while True:
            begin = int(rng.integers(settings.smooth, len(self.table) - span))
            end = begin + settings.window
            recent = self.table.iloc[begin - settings.smooth : end + settings.horizon]
            readings = standardise(recent, settings.smooth)  # culprit: input
            values = torch.from_numpy(readings.to_numpy(dtype=np.float32))[settings.smooth :]
            yield values[: settings.window], values[settings.window :, 0]
