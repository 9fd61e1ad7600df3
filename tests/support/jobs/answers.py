"""A job that answers without a real model, and lacks memory or patience on request.

An answer depends on its question alone, as that of a real model does. Of the environment:
ANSWERS_LIMIT is the largest batch for which there is memory; ANSWERS_BYTES is what each sample
really allocates, under a real limit of ANSWERS_ROOM bytes for all; ANSWERS_SLEEP is a
question and when it takes for ever: "cp 2" the second time that it is asked.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from bench.generation.questions import read_questions
from diagnose.workload import (
    Batch,
    Decoding,
    Encoded,
    Generation,
    Generator,
    Network,
    Question,
    Size,
    Workload,
    WorkloadError,
)
from tests.support.jobs.small import limit_memory

COUNT = 11
PAD = 0
UNREADABLE = "unreadable"


class FakeGenerator:
    def __init__(self) -> None:
        self.model: nn.Module = nn.Linear(4, 4)
        self.batches: list[int] = []
        self.asked: Counter[str] = Counter()

    def encode(self, question: Question, max_crops: int | None = None) -> Encoded:
        if question.prompt == UNREADABLE:
            raise WorkloadError(f"question {question.key} cannot be encoded")
        ids = torch.tensor([ord(letter) for letter in question.prompt])
        tiles = min(max_crops or 1, 1 + len(ids) % 3)
        return Encoded(ids, torch.zeros(tiles, 3, 2, 2))

    def collate(self, samples: Sequence[Encoded]) -> dict[str, Tensor]:
        width = max(len(each.input_ids) for each in samples)
        rows = [
            nn.functional.pad(each.input_ids, (width - len(each.input_ids), 0), value=PAD)
            for each in samples
        ]
        return {"input_ids": torch.stack(rows)}

    def generate(self, batch: Batch, decoding: Decoding) -> list[tuple[int, ...]]:
        rows = [[token for token in row if token] for row in batch["input_ids"].tolist()]
        self.batches.append(len(rows))
        if len(rows) > int(os.environ.get("ANSWERS_LIMIT", len(rows))):
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0")
        torch.empty(len(rows) * int(os.environ.get("ANSWERS_BYTES", "0")), dtype=torch.uint8)
        for row in rows:
            prompt = self.decode(row)
            self.asked[prompt] += 1
            if f"{prompt} {self.asked[prompt]}" == os.environ.get("ANSWERS_SLEEP"):
                time.sleep(3600)
        # Every second letter: right, wrong and half right answers, none of them empty.
        return [tuple(row[-1::-2])[: decoding.max_new_tokens] for row in rows]

    def decode(self, tokens: Sequence[int]) -> str:
        return "".join(map(chr, tokens))


def open_generator(
    shape: Mapping[str, int],
    device: torch.device,
    *,
    model_directory: Path | None = None,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
) -> Generator:
    if "ANSWERS_ROOM" in os.environ:
        limit_memory(int(os.environ["ANSWERS_ROOM"]))
    return FakeGenerator()


def open_questions(data: Path | None, count: int) -> list[Question]:
    if data is not None:
        return read_questions(data)[:count]
    # The second letter of each is the answer, which is right for every second question.
    asked = [(chr(ord("a") + n), chr(ord("n") + n)) for n in range(min(count, COUNT))]
    return [
        Question(str(n), first + second, (second if n % 2 == 0 else "0",))
        for n, (first, second) in enumerate(asked)
    ]


def _refuse(*_: object) -> Tensor:
    raise NotImplementedError("this job only answers")


WORKLOAD = Workload(
    name="answers",
    sizes={"only": Size(batch_size=4, shape={"max_crops": 2, "new_tokens": 4})},
    model=Network(build=lambda size: nn.Linear(4, 4), loss=_refuse),
    synthetic_batch=_refuse,
    generation=Generation(
        open_generator=open_generator,
        open_questions=open_questions,
        wrap=lambda model, size: FakeGenerator(),
    ),
)
