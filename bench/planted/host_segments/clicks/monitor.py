"""Keeps an eye on how well calibrated the predictions are in each segment of the audience."""

import pandas as pd
import torch


class SegmentMonitor:
    def __init__(self, countries=35, devices=3):
        self.countries, self.devices = countries, devices
        self.worst = "-"

    def update(self, step, categories, logits, clicked):
        frame = pd.DataFrame(
            {
                "country": categories[:, 0].numpy() % self.countries,
                "device": categories[:, 1].numpy() % self.devices,
                "predicted": torch.sigmoid(logits).numpy(),
                "clicked": clicked.numpy(),
            }
        )
        self.worst = self.summarise(frame)  # culprit: host

    def summarise(self, frame):
        groups = frame.groupby(["country", "device"])
        quantiles = groups["predicted"].quantile([0.1, 0.5, 0.9]).unstack()  # cost: host
        table = groups[["predicted", "clicked"]].mean().join(quantiles)
        table["gap"] = (table["predicted"] - table["clicked"]).abs()
        lines = table.apply(self.describe, axis=1)
        return lines[table["gap"].idxmax()]

    @staticmethod
    def describe(row):
        country, device = row.name
        return f"country {country} device {device} off by {row['gap']:.3f}"
