"""All knobs in one place; `python slow.py --batch-size 8` overrides any of them."""

import argparse
import os
from dataclasses import dataclass, fields


@dataclass
class Config:
    # data
    recordings: int = 12
    minutes: float = 1.3
    sample_rate: int = 16_000
    clip_seconds: float = 1.0
    batch_size: int = 16
    # features
    n_fft: int = 512
    hop: int = 160
    n_mels: int = 48
    # optimisation
    steps: int = int(os.environ.get("STEPS", 20_000))
    lr: float = 3e-4
    weight_decay: float = 0.01
    warmup: int = 50
    seed: int = 11

    @property
    def clip_samples(self) -> int:
        return int(self.clip_seconds * self.sample_rate)


def from_command_line() -> Config:
    parser = argparse.ArgumentParser()
    for f in fields(Config):
        parser.add_argument("--" + f.name.replace("_", "-"), type=f.type, default=f.default)
    return Config(**vars(parser.parse_args()))
