"""How does a question become an answer? Tiles and ids in, padded on the left, and tokens out.

Token by token, always the likeliest, until its end or the limit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from bench.data import vocabulary
from bench.generation.language import Language, Views
from diagnose.workload import Decoding, Encoded, Question, Tensors, WorkloadError

PIXELS, TOKEN_TYPES = "pixel_values", "mm_token_type_ids"
# Which patches of the picture each of its tokens is made of: numbers that count through a batch.
POOLING = "image_token_pooling"
ABOUT_PICTURE = (POOLING, "image_grids", "image_num_crops")
MODEL_INPUTS = ("input_ids", "attention_mask", TOKEN_TYPES, PIXELS, *ABOUT_PICTURE)


@dataclass(frozen=True)
class Picture:
    """As a model takes it."""

    tiles: Tensor  # (tiles, ...): at most max_crops and an overview
    views: Views
    about: Mapping[str, Tensor] = field(default_factory=dict)

    @property
    def inputs(self) -> dict[str, Tensor]:
        return {PIXELS: self.tiles, **self.about}


class Pictures(Protocol):
    """How a model looks at a picture."""

    def tile(self, image: Path, max_crops: int | None) -> Picture: ...

    def make(self, max_crops: int | None, generator: torch.Generator) -> Picture:
        """Of random pixels, in the format of most photographs."""
        ...


def join_pictures(pictures: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """The inputs of a batch, one picture after the other."""
    names = pictures[0] if pictures else {}
    joined = {name: torch.cat([each[name] for each in pictures]) for name in names}
    if POOLING in joined:
        places, first = [], 0
        for each in pictures:
            pooling, tiles = each[POOLING], each[PIXELS]
            places.append(torch.where(pooling < 0, pooling, pooling + first))
            first += tiles.shape[0] * tiles.shape[1]
        joined[POOLING] = torch.cat(places)
    return joined


@dataclass(frozen=True)
class Reader:
    """All that stands before the model."""

    language: Language
    pictures: Pictures | None = None  # None: pictures are not looked at
    most_tokens: int | None = None  # that the model has positions for
    # Random weights never end; each sample ends where its reference answer would.
    ends_like_reference: bool = False

    def encode(self, question: Question, max_crops: int | None = None) -> Encoded:
        picture = None
        if self.pictures is not None and question.image is not None:
            picture = self.pictures.tile(question.image, max_crops)
        ids = self.language.encode_prompt(question.prompt, picture.views if picture else ())
        if self.most_tokens is not None and len(ids) > self.most_tokens:
            raise WorkloadError(
                f"question {question.key} has {len(ids)} tokens and the model takes "
                f"{self.most_tokens}; shorten or remove it"
            )
        end = self._find_end(question)
        if picture is None:
            return Encoded(torch.tensor(ids), answer_length=end)
        return Encoded(torch.tensor(ids), picture.tiles, end, picture.about)

    def _find_end(self, question: Question) -> int | None:
        if not self.ends_like_reference:
            return None
        return max(1, len(self.language.encode_answer(question.references[0])))

    def collate(self, samples: Sequence[Encoded]) -> dict[str, Tensor]:
        batch = self._pad([sample.input_ids for sample in samples])
        batch |= self.mark(batch["input_ids"])
        batch |= join_pictures(
            [
                {PIXELS: sample.pixel_values, **sample.about_picture}
                for sample in samples
                if sample.pixel_values is not None
            ]
        )
        lengths = [sample.answer_length for sample in samples]
        if None not in lengths:
            batch["answer_length"] = torch.tensor(lengths)
        return batch

    def mark(self, input_ids: Tensor) -> dict[str, Tensor]:
        """Which tokens are a picture's, for a model whose attention sees all of them at once."""
        marks = self.language.picture_marks
        return {TOKEN_TYPES: torch.isin(input_ids, torch.tensor(marks)).long()} if marks else {}

    def _pad(self, rows: Sequence[Tensor]) -> dict[str, Tensor]:
        width = max(map(len, rows))
        input_ids = torch.full((len(rows), width), self.language.pad)
        attention_mask = torch.zeros_like(input_ids)
        for place, row in enumerate(rows):
            input_ids[place, width - len(row) :] = row
            attention_mask[place, width - len(row) :] = 1
        return {"input_ids": input_ids, "attention_mask": attention_mask}


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
