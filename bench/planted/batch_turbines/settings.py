"""Settings of the experiments; everything can be overridden on the command line as key=value."""

import os
import sys
from dataclasses import dataclass, fields


@dataclass
class Settings:
    # data
    sensors: int = 14
    window: int = 32
    engines: int = 200
    batch_size: int = 8  # culprit: batch
    # model
    dim: int = 32
    heads: int = 4
    depth: int = 10
    # training
    lr: float = 3e-4
    steps: int = int(os.environ.get("STEPS", 6000))
    seed: int = 21


def from_command_line():
    settings = Settings()
    kinds = {f.name: f.type for f in fields(Settings)}
    for argument in sys.argv[1:]:
        key, _, value = argument.partition("=")
        setattr(settings, key, kinds[key](value))
    return settings
