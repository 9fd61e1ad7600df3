"""How long does each stage take, in pytest-benchmark's own format? `make bench`."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest

from diagnose.measure.stages import STAGE_KEYS

# What a stage times, where that is not one step of the stage's own name.
VARIANTS = {
    "ceilings": ["matmul float32", "memory copy", "empty operation"],
    "precision": ["mixed precision"],
    "loader": [
        f"{workers} workers, {storage}{pinned}"
        # An accelerator's batches are pinned, except for one case that shows what it is worth.
        for pinned in ("", ", pinned")
        for storage in ("mmap", "preload")
        for workers in (0, 2, 4, 8)
    ],
}
# In ladder order; on a device or workload that lacks one of them the case is skipped.
CASES = [(key, name) for key in STAGE_KEYS for name in VARIANTS.get(key, [key.replace("_", " ")])]


@pytest.mark.parametrize(("stage", "name"), CASES)
def test_stage(
    stage: str,
    name: str,
    open_variant: Callable[[str, str], AbstractContextManager[Any]],
    time_variant: Callable[[Any], None],
) -> None:
    with open_variant(stage, name) as variant:
        time_variant(variant)
