"""The sizes of everything."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Config:
    clips: int = 96
    frames: int = 16
    side: int = 64
    gestures: int = 8
    width: int = 8
    batch_size: int = 8
    workers: int = 1
    lr: float = 0.01
    seed: int = 14
