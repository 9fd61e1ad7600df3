"""Forecasts the inflow into reservoirs with one LSTM for all catchments."""

import logging

import torch
from hydro.engine import Engine, KeepBest, PrintStep
from hydro.rivers import Rivers
from hydro.settings import Settings


def main():
    settings = Settings()
    logging.basicConfig(level=logging.WARNING)
    logging.getLogger("hydro").info("%s", settings)
    torch.manual_seed(settings.seed)
    rivers = Rivers(settings.data, settings.seed)
    Engine(settings, rivers, [PrintStep(), KeepBest(settings.selection)]).run()


if __name__ == "__main__":
    main()
