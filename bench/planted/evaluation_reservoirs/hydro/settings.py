"""Nested settings, printed into the log of every run."""

import os
from dataclasses import dataclass, field


@dataclass
class Data:
    catchments: int = 30
    days: int = 1500
    history: int = 40
    drivers: int = 6
    batch: int = 96
    held_out: int = 1024


@dataclass
class Model:
    width: int = 64
    embedding: int = 8


@dataclass
class Selection:
    every_steps: int = 3  # culprit: evaluation
    chunk: int = 256


@dataclass
class Settings:
    data: Data = field(default_factory=Data)
    model: Model = field(default_factory=Model)
    selection: Selection = field(default_factory=Selection)
    lr: float = 2e-3
    steps: int = int(os.environ.get("STEPS", 12_000))
    seed: int = 17
