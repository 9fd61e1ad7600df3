"""How is a model asked many questions? Encoded by a loader, answered in batches that fit."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch.utils.data import DataLoader, Dataset

from diagnose.measure.evaluation.fallback import DoesNotFit, Fitting
from diagnose.measure.machine.out_of_memory import is_out_of_memory
from diagnose.records.evaluation import Answer, Step
from diagnose.workload import Decoding, Encoded, Generator, Question

T = TypeVar("T")


@dataclass(frozen=True)
class _Sample:
    index: int
    question: Question
    encoded: Encoded


class NoRoom(MemoryError):
    """Memory is short and no smaller batch helps; the message says what is needed."""


def answer_questions(
    generator: Generator,
    questions: Mapping[int, Question],
    decoding: Decoding,
    fitting: Fitting,
    *,
    max_crops: int | None = None,
    workers: int = 0,
) -> Iterator[Step]:
    """Every question once, in the order of the mapping, which is by place in the data."""
    device = next(generator.model.parameters()).device

    def generate(samples: Sequence[_Sample]) -> list[tuple[int, ...]]:
        collated = generator.collate([each.encoded for each in samples])
        batch = {name: tensor.to(device) for name, tensor in collated.items()}
        with torch.no_grad():
            return generator.generate(batch, decoding)

    loader = DataLoader(
        _Encoding(generator, questions, max_crops),
        batch_size=None,  # one by one: the batch size may change on the way
        collate_fn=_unchanged,
        num_workers=workers,
    )
    since, told = time.perf_counter(), 0
    try:
        for samples in _gather(_guarded(iter(loader)), lambda: fitting.batch_size):
            for part, tokens in fitting.run(samples, generate):
                answers = tuple(map(_read_answer(generator), part, tokens))
                now = time.perf_counter()
                yield Step(answers, now - since, tuple(fitting.fallbacks[told:]))
                since, told = now, len(fitting.fallbacks)
    except DoesNotFit as error:
        raise NoRoom(_explain(error.sample, error.asked_for, generator, decoding)) from None


class _Encoding(Dataset[_Sample]):
    def __init__(
        self, generator: Generator, questions: Mapping[int, Question], max_crops: int | None
    ) -> None:
        self._generator = generator
        self._questions = list(questions.items())
        self._max_crops = max_crops

    def __len__(self) -> int:
        return len(self._questions)

    def __getitem__(self, place: int) -> _Sample:
        index, question = self._questions[place]
        return _Sample(index, question, self._generator.encode(question, self._max_crops))


def _unchanged(sample: Any) -> Any:
    return sample


def _guarded(samples: Iterator[_Sample]) -> Iterator[_Sample]:
    """Encoding takes one sample at a time already, so no smaller batch would help it."""
    try:
        yield from samples
    except Exception as error:
        if not is_out_of_memory(error, torch.OutOfMemoryError):
            raise
        raise NoRoom(
            "encoding a single question ran out of memory; fewer loader workers need less"
        ) from error


def _gather(items: Iterator[T], size: Callable[[], int]) -> Iterator[list[T]]:
    """Lists of as many as the size asks for at that moment; the last one may be shorter."""
    held: list[T] = []
    for item in items:
        held.append(item)
        if len(held) >= size():
            yield held
            held = []
    if held:
        yield held


def _read_answer(generator: Generator) -> Callable[[_Sample, tuple[int, ...]], Answer]:
    def read(sample: _Sample, tokens: tuple[int, ...]) -> Answer:
        return Answer(
            index=sample.index,
            key=sample.question.key,
            text=generator.decode(tokens),
            generated_tokens=len(tokens),
            prompt_tokens=len(sample.encoded.input_ids),
            tiles=sample.encoded.tiles,
            prompt=sample.question.prompt,
            references=tuple(sample.question.references),
        )

    return read


def _explain(sample: _Sample, asked_for: str, generator: Generator, decoding: Decoding) -> str:
    nbytes = sum(each.nbytes for each in generator.model.parameters())
    tiles = f", {sample.encoded.tiles} image tiles" if sample.encoded.tiles else ""
    device = next(generator.model.parameters()).device
    elsewhere = "" if device.type == "cpu" else ", or --device cpu"
    return (
        f"question '{sample.question.key}' does not fit even alone: beside {nbytes / 1e6:.1f} MB "
        f"of weights, its {len(sample.encoded.input_ids)} tokens{tiles} and up to "
        f"{decoding.max_new_tokens} new ones need {tell_need(asked_for)}; use a smaller "
        f"--torch-dtype, fewer --max-tokens{elsewhere}"
    )


def tell_need(asked_for: str) -> str:
    return f"{asked_for} more" if asked_for else "more than is free"
