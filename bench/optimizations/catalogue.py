"""What can be tried? In the order of the field report, then what it left for later, then all."""

from __future__ import annotations

from bench.dgca.masking import mask_on_device
from bench.dgca.model import BEST
from bench.optimizations.allocator import KEEP_MEMORY
from bench.optimizations.dgca_data import (
    DATASET_BATCHED,
    DATASET_CLONE,
    DATASET_PRELOAD,
    LOADER_DROP_LAST,
    LOADER_PERSISTENT,
    LOADER_PREFETCH,
    LOADER_WORKERS,
)
from bench.optimizations.dgca_lab import training_trial
from bench.optimizations.dgca_model import (
    ALL_TOGETHER,
    APPLY_PROMPT,
    DYNAMIC_MASK,
    GATED_FUSION,
    HIDDEN_STATES,
    LABELLED_ONLY,
)
from bench.optimizations.training import (
    FUSED_OPTIMIZER,
    LOGGING_SYNC,
    MIXED_PRECISION,
    TORCH_COMPILE,
)
from diagnose.workload import Treatment

OPTIMIZATIONS = (
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
    LABELLED_ONLY,
    KEEP_MEMORY,
    ALL_TOGETHER,
)
TREATMENT = Treatment(
    OPTIMIZATIONS,
    mapped={
        "original": ALL_TOGETHER.before.trials["training step"],
        "optimised": ALL_TOGETHER.after.trials["training step"],
    },
    # Every change that is proven equal, also those that the original report left for later.
    best=training_trial(BEST, mask_on_device, fused=True),
)
