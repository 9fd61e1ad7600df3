"""How is an answer written? Token by token, always the likeliest, until its end or the limit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn

from bench.data import vocabulary
from bench.generation.reader import Reader
from diagnose.workload import Decoding, Encoded, Question, Tensors

MODEL_INPUTS = ("input_ids", "attention_mask", "pixel_values")


@dataclass(frozen=True)
class EndLikeReference:
    """Random weights never end an answer: each sample ends where its reference answer would.

    So lengths are distributed as those of real answers, and a sample's end does not depend on
    the batch that it is in. Everything but text is ruled out besides, above all the place holder
    of a picture.
    """

    prompt_width: int
    lengths: Tensor | None  # (batch,); None: nobody ends
    end: int

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        scores[:, : vocabulary.FIRST_CHARACTER] = -torch.inf
        if self.lengths is not None:
            ended = input_ids.shape[1] - self.prompt_width >= self.lengths
            # Not by index: finding the rows would make the host wait for the device.
            scores[:, self.end] = torch.where(ended, torch.inf, -torch.inf)
        return scores


class GreedyGenerator:
    """A causal model of transformers between a reader and its answers."""

    def __init__(self, model: nn.Module, reader: Reader) -> None:
        from transformers import GenerationConfig

        self.model: Any = model.eval()
        self.reader = reader
        # What a checkpoint prefers (sampling, penalties) would make answers incomparable.
        self.model.generation_config = GenerationConfig()

    def encode(self, question: Question, max_crops: int | None = None) -> Encoded:
        return self.reader.encode(question, max_crops)

    def collate(self, samples: Sequence[Encoded]) -> dict[str, Tensor]:
        return self.reader.collate(samples)

    def decode(self, tokens: Sequence[int]) -> str:
        return self.reader.language.decode(tokens)

    def generate(self, batch: Tensors, decoding: Decoding) -> list[tuple[int, ...]]:
        inputs = {name: batch[name].to(self.model.device) for name in MODEL_INPUTS if name in batch}
        language = self.reader.language
        written = self.model.generate(
            **inputs,
            generation_config=generation_config(language.ends, language.pad, decoding),
            logits_processor=self._rules(batch, decoding),
        )
        # From the padded width on for everybody: with the padding on the left, a row that is cut
        # at its own prompt's length would begin with the end of its question.
        rows: list[list[int]] = written[:, batch["input_ids"].shape[1] :].tolist()
        return [self._cut(row) if decoding.natural_stop else tuple(row) for row in rows]

    def _rules(self, batch: Tensors, decoding: Decoding) -> list[EndLikeReference]:
        if not self.reader.ends_like_reference:
            return []
        width, end = batch["input_ids"].shape[1], self.reader.language.ends[0]
        lengths = batch["answer_length"].to(self.model.device) if decoding.natural_stop else None
        return [EndLikeReference(width, lengths, end)]

    def _cut(self, row: Sequence[int]) -> tuple[int, ...]:
        ends = self.reader.language.ends
        stop = next((place for place, token in enumerate(row) if token in ends), len(row))
        return tuple(row[:stop])


@lru_cache
def generation_config(ends: tuple[int, ...], pad: int, decoding: Decoding) -> Any:
    """Built once for every way of decoding."""
    from transformers import GenerationConfig

    return GenerationConfig(
        do_sample=False,
        num_beams=1,
        max_new_tokens=decoding.max_new_tokens,
        eos_token_id=list(ends) if decoding.natural_stop else None,
        pad_token_id=pad,
        use_cache=decoding.use_cache,
        cache_implementation="static" if decoding.static_cache else None,
    )
