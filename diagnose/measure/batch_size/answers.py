"""How does a job write its answers? As its user's evaluation does, to the hardest questions."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn

from diagnose.measure.evaluation.opening import choose_dtype
from diagnose.measure.machine.device import Device
from diagnose.measure.stages.plan import Context
from diagnose.measure.stages.steps import full_precision
from diagnose.records.evaluation_options import DTYPES
from diagnose.records.header import Setting
from diagnose.workload import (
    Encoded,
    Generation,
    Generator,
    Question,
    Size,
    Workload,
    WorkloadError,
)

# Enough to meet every picture format, and soon encoded.
QUESTIONS = 32
# The longest text has not always the most tokens, but one of so many has.
LONGEST = 8


@dataclass(frozen=True)
class _Sample:
    """The first questions, for averages, and the longest of all, for what is needed at most.

    Of all but the hardest only the sizes are kept: their tiles would count as the job's memory.
    """

    hardest: Encoded
    first_tokens: Sequence[int]
    first_tiles: Sequence[int]
    least_tiles: int
    most_tiles: int


# A measuring process has one job, and encoding again for every probe would take longer than it.
_encoded: dict[tuple[Generation, Path | None, int | None], _Sample] = {}


def _encode(context: Context, generator: Generator) -> _Sample:
    generation = context.workload.generation
    assert generation is not None
    max_crops = context.size.shape.get("max_crops")
    key = (generation, context.data, max_crops)
    if key not in _encoded:
        most = sys.maxsize if context.data is not None else context.size.shape["rows"]
        questions = generation.open_questions(context.data, most)
        first = questions[:QUESTIONS]
        _encoded[key] = _survey(
            generator, [*first, *find_longest(questions)], len(first), max_crops
        )
    return _encoded[key]


def _survey(
    generator: Generator, questions: Sequence[Question], first: int, max_crops: int | None
) -> _Sample:
    hardest = generator.encode(questions[0], max_crops)
    tokens, tiles = [len(hardest.input_ids)], [hardest.tiles]
    for question in questions[1:]:
        encoded = generator.encode(question, max_crops)
        if len(encoded.input_ids) > len(hardest.input_ids):
            hardest = encoded
        tokens.append(len(encoded.input_ids))
        tiles.append(encoded.tiles)
    return _Sample(hardest, tokens[:first], tiles[:first], min(tiles), max(tiles))


def find_longest(questions: Sequence[Question]) -> list[Question]:
    """By their text, before anything is encoded: a file may have thousands."""
    return sorted(questions, key=lambda each: len(each.prompt), reverse=True)[:LONGEST]


def hardest_batch(context: Context, generator: Generator) -> dict[str, Tensor]:
    """The longest question as often as the batch is large: none that is drawn is larger."""
    return generator.collate([_encode(context, generator).hardest] * context.size.batch_size)


def weights_dtype(generator: Generator, device: Device) -> str:
    dtype = next(generator.model.parameters()).dtype
    if dtype is torch.float32:
        return full_precision(device)
    return str(dtype).removeprefix("torch.")


def describe_inputs(context: Context) -> dict[str, Setting]:
    """Tokens and tiles that the questions really have; empty for a job that writes nothing."""
    generation = context.workload.generation
    if generation is None:
        return {}
    model = context.model(context.workload.model)
    generator = generation.wrap(model, context.size)
    sample = _encode(context, generator)
    tokens, tiles = sample.first_tokens, sample.first_tiles
    facts: dict[str, Setting] = {
        "dtype": weights_dtype(generator, context.device),
        "prompt_tokens_mean": sum(tokens) / len(tokens),
        "prompt_tokens_most": len(sample.hardest.input_ids),
    }
    if sample.most_tiles:
        facts |= {
            "tiles_least": sample.least_tiles,
            "tiles_mean": sum(tiles) / len(tiles),
            "tiles_most": sample.most_tiles,
        }
    return facts


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
                "textgen, vqa and molmo do"
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
