"""How does the user's evaluation write? In the dtype of its weights, and so many tokens at most."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch
from torch import nn

from diagnose.measure.evaluation.opening import choose_dtype
from diagnose.records.evaluation_options import DTYPES
from diagnose.workload import Size, Workload, WorkloadError


def as_evaluated(
    job: Workload, model: Path | None, dtype: str | None, max_new_tokens: int | None, seed: int
) -> Workload:
    """The job as an evaluation with these settings runs it; None leaves it as it is."""
    if job.generation is None:
        named = {
            "--torch-dtype": dtype not in (None, DTYPES[0]),
            "--max-new-tokens": max_new_tokens,
        }
        given = [option for option, value in named.items() if value]
        if given:
            raise WorkloadError(
                f"workload {job.name} writes no answers, so {' and '.join(given)} has no use; "
                "textgen and vqa do"
            )
        return job
    if max_new_tokens is not None:
        sizes = {name: _lengthen(size, max_new_tokens) for name, size in job.sizes.items()}
        job = replace(job, sizes=sizes)
    chosen = torch.float32 if dtype is None else choose_dtype(dtype, model)
    return job if chosen is torch.float32 else _in_dtype(job, chosen, seed)


def _lengthen(size: Size, new_tokens: int) -> Size:
    return replace(size, shape={**size.shape, "new_tokens": new_tokens})


def _in_dtype(job: Workload, dtype: torch.dtype, seed: int) -> Workload:
    """Loaded in it: weights that fit only so must never be there in float32."""
    generation = job.generation
    assert generation is not None

    def build(size: Size) -> nn.Module:
        host = torch.device("cpu")
        return generation.open_generator(size.shape, host, dtype=dtype, seed=seed).model

    return replace(job, model=replace(job.model, build=build))
