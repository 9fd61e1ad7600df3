"""Demand forecasting for a chain of shops: the next four weeks from the last sixty-four."""

import os

import torch

from forecast.callbacks import LearningRate, Printer, ShopErrors
from forecast.data import DemandData
from forecast.model import TemporalNet
from forecast.trainer import Trainer

CONFIG = {
    "data": {"shops": 60, "days": 1500, "history": 64, "horizon": 28, "batch_size": 256, "seed": 5},
    "model": {"channels": 24, "levels": 4, "kernel": 3},
    "trainer": {"lr": 2e-3, "steps": int(os.environ.get("STEPS", 4000)), "clip": 1.0},
}


def main(config):
    torch.manual_seed(config["data"]["seed"])
    torch.set_num_threads(1)
    data = DemandData(**config["data"])
    model = TemporalNet(horizon=data.horizon, **config["model"])
    errors = ShopErrors(data.names)
    trainer = Trainer(
        model,
        callbacks=[LearningRate(warmup=100), errors, Printer(errors)],
        **config["trainer"],
    )
    trainer.fit(data)


if __name__ == "__main__":
    main(CONFIG)
