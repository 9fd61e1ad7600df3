"""How does a question become tensors? Its picture in tiles, its text in ids, padded on the left."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from bench.generation.language import Language
from diagnose.workload import Encoded, Question, WorkloadError


class Pictures(Protocol):
    """How a model looks at a picture."""

    @property
    def tokens_per_tile(self) -> int: ...

    def tile(self, image: Path, max_crops: int | None) -> Tensor:
        """(tiles, 3, height, width): at most max_crops and, of several, an overview."""
        ...

    def make_tiles(self, max_crops: int | None, generator: torch.Generator) -> Tensor:
        """The same of random pixels, in the format of most photographs."""
        ...


@dataclass(frozen=True)
class Reader:
    """All that stands before the model."""

    language: Language
    pictures: Pictures | None = None  # None: pictures are not looked at
    most_tokens: int | None = None  # that the model has positions for
    # Random weights never end; each sample ends where its reference answer would.
    ends_like_reference: bool = False

    def encode(self, question: Question, max_crops: int | None = None) -> Encoded:
        tiles = None
        if self.pictures is not None and question.image is not None:
            tiles = self.pictures.tile(question.image, max_crops)
        ids = self.language.encode_prompt(question.prompt, self._count_tokens(tiles))
        if self.most_tokens is not None and len(ids) > self.most_tokens:
            raise WorkloadError(
                f"question {question.key} has {len(ids)} tokens and the model takes "
                f"{self.most_tokens}; shorten or remove it"
            )
        return Encoded(torch.tensor(ids), tiles, self._find_end(question))

    def _count_tokens(self, tiles: Tensor | None) -> int:
        if tiles is None or self.pictures is None:
            return 0
        return len(tiles) * self.pictures.tokens_per_tile

    def _find_end(self, question: Question) -> int | None:
        if not self.ends_like_reference:
            return None
        return max(1, len(self.language.encode_answer(question.references[0])))

    def collate(self, samples: Sequence[Encoded]) -> dict[str, Tensor]:
        batch = self._pad([sample.input_ids for sample in samples])
        tiles = [sample.pixel_values for sample in samples if sample.pixel_values is not None]
        if tiles:
            batch["pixel_values"] = torch.cat(tiles)
        lengths = [sample.answer_length for sample in samples]
        if None not in lengths:
            batch["answer_length"] = torch.tensor(lengths)
        return batch

    def _pad(self, rows: Sequence[Tensor]) -> dict[str, Tensor]:
        width = max(map(len, rows))
        input_ids = torch.full((len(rows), width), self.language.pad)
        attention_mask = torch.zeros_like(input_ids)
        for place, row in enumerate(rows):
            input_ids[place, width - len(row) :] = row
            attention_mask[place, width - len(row) :] = 1
        return {"input_ids": input_ids, "attention_mask": attention_mask}
