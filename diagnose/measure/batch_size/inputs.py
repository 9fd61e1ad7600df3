"""What goes into a job that writes answers? The questions as encoded, and the hardest of them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from diagnose.measure.machine.device import Device
from diagnose.measure.stages.plan import Context
from diagnose.measure.stages.steps import full_precision
from diagnose.records.header import Setting
from diagnose.workload import Encoded, Generation, Generator, Question

# Enough to meet every picture format, and soon encoded.
QUESTIONS = 32
# The longest text has not always the most tokens, but one of so many has.
LONGEST = 8


@dataclass(frozen=True)
class _Sample:
    """The first questions, for averages, and the longest of all, for what is needed at most."""

    first: Sequence[Encoded]
    longest: Sequence[Encoded]

    @property
    def all(self) -> Sequence[Encoded]:
        return [*self.first, *self.longest]


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
        _encoded[key] = _Sample(
            [generator.encode(each, max_crops) for each in questions[:QUESTIONS]],
            [generator.encode(each, max_crops) for each in find_longest(questions)],
        )
    return _encoded[key]


def find_longest(questions: Sequence[Question]) -> list[Question]:
    """By their text, before anything is encoded: a file may have thousands."""
    return sorted(questions, key=lambda each: len(each.prompt), reverse=True)[:LONGEST]


def hardest_batch(context: Context, generator: Generator) -> dict[str, Tensor]:
    """The longest question as often as the batch is large: none that is drawn is larger."""
    hardest = max(_encode(context, generator).all, key=lambda each: len(each.input_ids))
    return generator.collate([hardest] * context.size.batch_size)


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
    tokens = [len(each.input_ids) for each in sample.first]
    facts: dict[str, Setting] = {
        "dtype": weights_dtype(generator, context.device),
        "prompt_tokens_mean": sum(tokens) / len(tokens),
        "prompt_tokens_most": max(len(each.input_ids) for each in sample.all),
    }
    usual = [each.tiles for each in sample.first]
    tiles = [each.tiles for each in sample.all]
    if any(tiles):
        facts |= {
            "tiles_least": min(tiles),
            "tiles_mean": sum(usual) / len(usual),
            "tiles_most": max(tiles),
        }
    return facts
