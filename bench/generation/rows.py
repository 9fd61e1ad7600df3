"""What is a generative model trained on? Questions with their answers; the loss is the answers'."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import Dataset

from bench.data.tensors import IGNORED
from bench.generation.reader import Reader
from diagnose.workload import Question


class AnsweredQuestions(Dataset[dict[str, Tensor]]):
    """One question with its first reference answer per row, encoded when it is asked for."""

    def __init__(
        self, questions: Sequence[Question], reader: Reader, rows: int, max_crops: int | None
    ) -> None:
        self._questions = questions
        self._reader = reader
        self._rows = rows
        self._max_crops = max_crops

    def __len__(self) -> int:
        return self._rows

    def __getitem__(self, row: int) -> dict[str, Tensor]:
        question = self._questions[row % len(self._questions)]
        encoded = self._reader.encode(question, self._max_crops)
        language = self._reader.language
        answer = torch.tensor([*language.encode_answer(question.references[0]), language.ends[0]])
        found = {
            "input_ids": torch.cat([encoded.input_ids, answer]),
            "labels": torch.cat([torch.full_like(encoded.input_ids, IGNORED), answer]),
        }
        if encoded.pixel_values is not None:
            found["pixel_values"] = encoded.pixel_values
        return found


def collate(rows: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Padded on the left like the questions; which id pads does not matter where it is masked."""
    width = max(len(row["input_ids"]) for row in rows)

    def pad(tensors: Sequence[Tensor], value: int) -> Tensor:
        return torch.stack([F.pad(each, (width - len(each), 0), value=value) for each in tensors])

    batch = {
        "input_ids": pad([row["input_ids"] for row in rows], 0),
        "attention_mask": pad([torch.ones_like(row["input_ids"]) for row in rows], 0),
        "labels": pad([row["labels"] for row in rows], IGNORED),
    }
    tiles = [row["pixel_values"] for row in rows if "pixel_values" in row]
    return {**batch, "pixel_values": torch.cat(tiles)} if tiles else batch
