"""Who answers without a model? A generator whose answers follow from the question alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor, nn

from diagnose.workload import Batch, Decoding, Encoded, Generation, Question, Size

PAD, FIRST = 0, 1  # letters a, b, c, ... are 1, 2, 3, ...
SIZE = Size(batch_size=4, shape={"rows": 20})


@dataclass
class FakeGenerator:
    """Writes the prompt backwards, as long as it may; a prompt ends where its letters do."""

    model: nn.Module = field(default_factory=lambda: nn.Linear(1, 1))
    batches: list[tuple[int, int]] = field(default_factory=list)  # the shapes that were seen

    def encode(self, question: Question, max_crops: int | None = None) -> Encoded:
        ids = [ord(letter) - ord("a") + FIRST for letter in question.prompt]
        return Encoded(torch.tensor(ids, dtype=torch.int64))

    def collate(self, samples: Sequence[Encoded]) -> dict[str, Tensor]:
        width = max(len(each.input_ids) for each in samples)
        rows = torch.full((len(samples), width), PAD)
        for row, each in zip(rows, samples, strict=True):
            row[width - len(each.input_ids) :] = each.input_ids
        return {"input_ids": rows, "attention_mask": (rows != PAD).long()}

    def generate(self, batch: Batch, decoding: Decoding) -> list[tuple[int, ...]]:
        rows, width = batch["input_ids"].shape
        self.batches.append((rows, width))
        answers = []
        for row in batch["input_ids"].tolist():
            written = [token for token in reversed(row) if token != PAD]
            if not decoding.natural_stop:
                written = (written * decoding.max_new_tokens)[: decoding.max_new_tokens]
            answers.append(tuple(written[: decoding.max_new_tokens]))
        return answers

    def decode(self, tokens: Sequence[int]) -> str:
        return "".join(chr(token - FIRST + ord("a")) for token in tokens)


def open_generator(
    shape: Mapping[str, int],
    device: torch.device,
    *,
    model_directory: Path | None = None,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
) -> FakeGenerator:
    return FakeGenerator(nn.Linear(1, 1).to(device=device, dtype=dtype))


def open_questions(data: Path | None, count: int) -> list[Question]:
    """Prompts of 1 to 20 letters in no order; every second reference is right."""
    letters = "abcdefghijklmnopqrst"
    prompts = [letters[: 1 + 7 * place % 20] for place in range(min(count, 20))]
    return [
        Question(str(place), prompt, (prompt[::-1] if place % 2 else "wrong",))
        for place, prompt in enumerate(prompts)
    ]


GENERATION = Generation(
    open_generator=open_generator,
    open_questions=open_questions,
    wrap=lambda model, size: FakeGenerator(model),
)
