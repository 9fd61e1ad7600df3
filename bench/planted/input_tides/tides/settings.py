"""The settings of a run."""

from dataclasses import dataclass


@dataclass
class Settings:
    gauges: int = 12
    hours: int = 4_000
    window: int = 72
    smooth: int = 24
    horizon: int = 6
    hidden: int = 48
    layers: int = 2
    batch_size: int = 48
    lr: float = 5e-4
    quantiles: tuple[float, ...] = (0.1, 0.5, 0.9)
    workers: int = 1
    seed: int = 11
