"""How does a generative model become a workload? With what it shares with all that write."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import Dataset

from bench import bert
from bench.data.tensors import IGNORED, SEED
from bench.generation.reader import (
    ABOUT_PICTURE,
    PIXELS,
    TOKEN_TYPES,
    GreedyGenerator,
    Reader,
    join_pictures,
)
from diagnose.measure.evaluation.directory import hash_questions, read_config
from diagnose.workload import (
    DataSummary,
    Generation,
    Generator,
    Network,
    Question,
    Size,
    Treatment,
    Workload,
)

Shape = Mapping[str, int]
# By the name that a size has for it: what a model on disk is like, for the report.
CONFIG_NAMES = {
    "layers": "num_hidden_layers",
    "hidden": "hidden_size",
    "heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads",
    "ffn": "intermediate_size",
    "vocab": "vocab_size",
}
# The language model of Qwen2.5-0.5B, which InternVL3-1B has as well.
QWEN_HALF_BILLION = {"layers": 24, "hidden": 896, "heads": 14, "kv_heads": 2, "ffn": 4864}
# For tests.
TINY_LANGUAGE = {"layers": 2, "hidden": 32, "heads": 2, "kv_heads": 1, "ffn": 64}
# What a job has besides, whatever its model is like.
JOB_NAMES = ("max_crops", "rows", "new_tokens")


@dataclass(frozen=True)
class Family:
    """What one kind of generative job brings along; a directory stands for a model on disk."""

    name: str
    description: str  # of the built-in questions
    sizes: Mapping[str, Size]
    build_model: Callable[[Shape, Path | None, torch.dtype], nn.Module]
    open_reader: Callable[[Shape, Path | None], Reader]
    open_questions: Callable[[Path | None, int], list[Question]]

    def open_generator(
        self,
        shape: Shape,
        device: torch.device,
        *,
        model_directory: Path | None = None,
        dtype: torch.dtype = torch.float32,
        seed: int = 0,
    ) -> Generator:
        """See OpenGenerator in diagnose/workload.py."""
        torch.manual_seed(seed)
        model = self.build_model(shape, model_directory, dtype).to(device=device, dtype=dtype)
        return GreedyGenerator(model, self.open_reader(shape, model_directory))

    def size_of(self, directory: Path) -> Size:
        """Of a model on disk: its own shape, and the largest built-in job in careful batches."""
        config = read_config(directory)
        text = config.get("text_config", config)
        usual = self.sizes["seed"]
        shape = {name: usual.shape[name] for name in JOB_NAMES if name in usual.shape}
        known = {name: text.get(key) for name, key in CONFIG_NAMES.items()}
        shape |= {name: value for name, value in known.items() if isinstance(value, int)}
        return Size(self.sizes["small"].batch_size, usual.sequence_length, shape)


def make_workload(family: Family, directory: Path | None = None) -> Workload:
    """The job with random weights, or with the model of a directory."""
    sizes = (
        family.sizes if directory is None else {directory.resolve().name: family.size_of(directory)}
    )
    reads = partial(_open_reader, family, directory)
    generation = Generation(
        open_generator=partial(family.open_generator, model_directory=directory),
        open_questions=family.open_questions,
        wrap=lambda model, size: GreedyGenerator(model, reads(size)),
    )
    return Workload(
        name=family.name,
        sizes=sizes,
        model=Network(
            build=lambda size: family.build_model(size.shape, directory, torch.float32),
            loss=bert.loss,
            forward=bert.forward,
        ),
        synthetic_batch=lambda size, device: make_synthetic_batch(reads(size), size, device),
        datasets={"questions": lambda size, path: _open_rows(family, reads(size), size, path)},
        collate=collate,
        describe_data=lambda size, path: _describe(family, reads(size), size, path),
        generation=generation,
        treatment=partial(_treat, generation),
        from_directory=partial(make_workload, family),
    )


def _treat(generation: Generation) -> Treatment:
    from bench.optimizations.generation import make_treatment

    return make_treatment(generation)


def _open_reader(family: Family, directory: Path | None, size: Size) -> Reader:
    return _keep_reader(family.open_reader, directory, tuple(size.shape.items()))


@lru_cache
def _keep_reader(
    open_reader: Callable[[Shape, Path | None], Reader],
    directory: Path | None,
    shape: tuple[tuple[str, int], ...],
) -> Reader:
    """Opened once: the tokenizer of a large model takes a second."""
    return open_reader(dict(shape), directory)


def make_synthetic_batch(reader: Reader, size: Size, device: torch.device) -> dict[str, Tensor]:
    """Random text behind the tiles of a random 4:3 picture, nothing padded."""
    assert size.sequence_length is not None
    generator = torch.Generator().manual_seed(SEED)
    shape, batch = size.shape, size.batch_size
    input_ids = torch.randint(shape["vocab"], (batch, size.sequence_length), generator=generator)
    made: dict[str, Tensor] = {}
    if reader.pictures is not None:
        picture = reader.pictures.make(shape["max_crops"], generator)
        token = reader.language.image_token
        assert token is not None
        # A picture's place holder in the text would ask for one more picture.
        input_ids[input_ids == token] = token - 1
        places = torch.tensor(reader.language.place(picture.views)).repeat(batch, 1)
        input_ids = torch.cat([places, input_ids], dim=1)
        made |= join_pictures([picture.inputs] * batch)
    made |= reader.mark(input_ids)
    labels = input_ids.clone()
    labels[:, : -(size.sequence_length // 2)] = IGNORED
    made |= {
        "input_ids": input_ids,
        "attention_mask": torch.ones_like(input_ids),
        "labels": labels,
    }
    return {name: tensor.to(device) for name, tensor in made.items()}


def _open_rows(family: Family, reader: Reader, size: Size, path: Path | None) -> AnsweredQuestions:
    rows = size.shape["rows"]
    questions = family.open_questions(path, rows)
    return AnsweredQuestions(questions, reader, rows, size.shape.get("max_crops"))


def _describe(family: Family, reader: Reader, size: Size, path: Path | None) -> DataSummary:
    """Lengths are those of the questions in tokens, and the padding is that of their batches."""
    questions = family.open_questions(path, size.shape["rows"])
    encoded = [reader.encode(question, size.shape.get("max_crops")) for question in questions]
    lengths = [len(each.input_ids) for each in encoded]
    shares = torch.tensor([0.1, 0.5, 0.9, 1.0]).double()
    quantiles = torch.quantile(torch.tensor(lengths).double(), shares)
    batches = [lengths[at : at + size.batch_size] for at in range(0, len(lengths), size.batch_size)]
    slots = sum(len(batch) * max(batch) for batch in batches)
    tiles = sum(each.tiles for each in encoded) / len(encoded)
    pictures = f", {tiles:.3g} tiles each" if tiles else ""
    return DataSummary(
        description=f"{family.description if path is None else path.name}{pictures}",
        sha256=hash_questions(questions),
        sentences=len(questions),
        rows=size.shape["rows"],
        erroneous_rows=0,
        length_quantiles=dict(zip(("p10", "p50", "p90", "max"), quantiles.tolist(), strict=True)),
        padding_share=1 - sum(lengths) / slots,
        unit="questions",
        length_unit="tokens",
    )


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
        found |= self._reader.mark(found["input_ids"])
        if encoded.pixel_values is not None:
            found |= {PIXELS: encoded.pixel_values, **encoded.about_picture}
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
    if TOKEN_TYPES in rows[0]:
        batch[TOKEN_TYPES] = pad([row[TOKEN_TYPES] for row in rows], 0)
    pictures = [
        {name: row[name] for name in (PIXELS, *ABOUT_PICTURE) if name in row}
        for row in rows
        if PIXELS in row
    ]
    return batch | join_pictures(pictures)
