"""What can be set."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Config:
    photographs: int = 192
    camera_height: int = 480
    camera_width: int = 640
    side: int = 64
    species: int = 12
    width: int = 16
    batch_size: int = 32
    lr: float = 0.02
    weight_decay: float = 1e-4
    smoothing: float = 0.05
    workers: int = 1
    seed: int = 7
