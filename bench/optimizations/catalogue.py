"""What can be tried? In the order of the field report, then what it left for later, then all."""

from __future__ import annotations

from bench.optimizations.contract import Optimization
from bench.optimizations.dgca_data import (
    DATASET_BATCHED,
    DATASET_CLONE,
    DATASET_PRELOAD,
    LOADER_DROP_LAST,
    LOADER_PERSISTENT,
    LOADER_PREFETCH,
    LOADER_WORKERS,
)
from bench.optimizations.dgca_model import (
    ALL_TOGETHER,
    APPLY_PROMPT,
    DYNAMIC_MASK,
    GATED_FUSION,
    HIDDEN_STATES,
)
from bench.optimizations.training import (
    FUSED_OPTIMIZER,
    LOGGING_SYNC,
    MIXED_PRECISION,
    TORCH_COMPILE,
)

OPTIMIZATIONS: tuple[Optimization, ...] = (
    APPLY_PROMPT,
    DYNAMIC_MASK,
    GATED_FUSION,
    DATASET_CLONE,
    DATASET_PRELOAD,
    DATASET_BATCHED,
    LOADER_WORKERS,
    LOADER_PREFETCH,
    LOADER_PERSISTENT,
    LOADER_DROP_LAST,
    LOGGING_SYNC,
    TORCH_COMPILE,
    FUSED_OPTIMIZER,
    HIDDEN_STATES,
    MIXED_PRECISION,
    ALL_TOGETHER,
)
