"""What is a generative job made of? Questions, their tensors, and a model that answers them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Question:
    """One sample of an evaluation."""

    key: str
    prompt: str
    references: tuple[str, ...]  # every answer that counts as right
    image: Path | None = None


@dataclass(frozen=True)
class Encoded:
    """A question as tensors on the CPU, not yet padded."""

    input_ids: Tensor  # (length,)
    pixel_values: Tensor | None = None  # (tiles, 3, height, width)
    # Where random weights are made to end, because they never do so by themselves.
    answer_length: int | None = None

    @property
    def tiles(self) -> int:
        return 0 if self.pixel_values is None else len(self.pixel_values)


@dataclass(frozen=True)
class Decoding:
    """How answers are written: always greedily, because sampled runs cannot be compared."""

    max_new_tokens: int = 16
    # False: exactly max_new_tokens for everyone, whatever the model would rather say.
    natural_stop: bool = True
    use_cache: bool = True
    static_cache: bool = False


Batch = Mapping[str, Tensor]


class Generator(Protocol):
    """A model with all that stands between a question and its answer."""

    @property
    def model(self) -> nn.Module: ...

    def encode(self, question: Question, max_crops: int | None = None) -> Encoded: ...

    def collate(self, samples: Sequence[Encoded]) -> dict[str, Tensor]:
        """Padded on the left: the answer must follow the question at once."""
        ...

    def generate(self, batch: Batch, decoding: Decoding) -> list[tuple[int, ...]]:
        """The new tokens of each sample, without padding and without the end mark."""
        ...

    def decode(self, tokens: Sequence[int]) -> str: ...


class OpenGenerator(Protocol):
    """How a workload's generator is made: random weights of a size, or a directory's own."""

    def __call__(
        self,
        shape: Mapping[str, int],
        device: torch.device,
        *,
        model_directory: Path | None = None,
        dtype: torch.dtype = torch.float32,
        seed: int = 0,
    ) -> Generator: ...
