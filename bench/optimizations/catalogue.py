"""What can be tried? In the order of the field report, then what it left for later, then all."""

from __future__ import annotations

import importlib

from bench.dgca.masking import mask_on_device
from bench.dgca.model import BEST
from bench.optimizations import dgca_model
from bench.optimizations.dgca_lab import training_trial
from diagnose.workload import Optimization, Treatment

# File of this folder, and what it offers: one or several.
_ENTRIES = (
    "dgca_model.APPLY_PROMPT",
    "dgca_model.DYNAMIC_MASK",
    "dgca_model.GATED_FUSION",
    "dgca_data.OPTIMIZATIONS",
    "training.LOGGING_SYNC",
    "whole_step.TORCH_COMPILE",
    "training.FUSED_OPTIMIZER",
    "dgca_model.HIDDEN_STATES",
    "whole_step.MIXED_PRECISION",
    "whole_step.BFLOAT16",
    "dgca_model.LABELLED_ONLY",
    "training.KEEP_MEMORY",
    "dgca_model.ALL_TOGETHER",
    "whole_step.ALL_TOGETHER_FP16",
)


def _find(entry: str) -> tuple[Optimization, ...]:
    module, _, name = entry.partition(".")
    found = getattr(importlib.import_module(f"bench.optimizations.{module}"), name)
    return (found,) if isinstance(found, Optimization) else tuple(found)


OPTIMIZATIONS = tuple(each for entry in _ENTRIES for each in _find(entry))
TREATMENT = Treatment(
    OPTIMIZATIONS,
    mapped={
        "original": dgca_model.ALL_TOGETHER.before.trials["training step"],
        "optimised": dgca_model.ALL_TOGETHER.after.trials["training step"],
    },
    # Every change that is proven equal, also those that the original report left for later.
    best=training_trial(BEST, mask_on_device, fused=True),
)
