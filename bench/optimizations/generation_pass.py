"""How does an evaluation run? Load, answer and score every question once, in one way or another."""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from multiprocessing.connection import Connection
from typing import Protocol

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from bench.data.waits import Waits
from bench.generation.reader import generation_config
from diagnose.measure.evaluation.scores import vqa_accuracies, vqa_accuracy
from diagnose.workload import Decoding, Encoded, Generator, Question

# A model of a few GB loads from a slow disk in less.
READY_SECONDS = 120.0
END_SECONDS = 5.0


@dataclass(frozen=True)
class Settings:
    """As the published guide found the job, unless said otherwise; the batch is the size's."""

    batch_size: int
    max_new_tokens: int = 32
    natural_stop: bool = True
    use_cache: bool = True
    static_cache: bool = False
    compile: bool = False
    dtype: str = "float32"
    workers: int = 0
    prefetch: int | None = None
    pin_memory: bool = False
    non_blocking: bool = False
    config_per_batch: bool = True
    log_every_batch: bool = True
    score_per_sample: bool = True
    sort_by_length: bool = False
    # As published: the padding is on the left, but answers are cut as if it were on the right.
    cut_at_own_length: bool = False
    processes: int = 1

    @property
    def decoding(self) -> Decoding:
        return Decoding(
            self.max_new_tokens,
            natural_stop=self.natural_stop,
            use_cache=self.use_cache,
            static_cache=self.static_cache,
        )


@dataclass(frozen=True)
class Answer:
    """What was written for a question, and how good it is."""

    tokens: tuple[int, ...]
    score: float


Loaded = tuple[list[int], dict[str, Tensor]]  # places of the questions, and their batch


class Pass:
    """One evaluation of some questions; each call of run() is a whole one."""

    def __init__(
        self, generator: Generator, questions: Mapping[int, Question], settings: Settings
    ) -> None:
        self._generator = generator
        self._questions = questions
        self._settings = settings
        self._device = next(generator.model.parameters()).device
        self.waits = Waits()
        # Only sorting asks for lengths, and a picture takes long to encode.
        lengths = {
            at: len(generator.encode(each).input_ids) if settings.sort_by_length else 0
            for at, each in questions.items()
        }
        self.batches = split(in_order(lengths, settings), settings.batch_size)
        self._loader: DataLoader[tuple[int, Encoded]] = DataLoader(
            _Encoding(generator, questions),
            batch_sampler=self.batches,
            collate_fn=_Collating(generator),
            num_workers=settings.workers,
            # torch refuses both options where there are no workers. They are kept from pass to
            # pass: starting them is done once, and an evaluation takes hours.
            prefetch_factor=settings.prefetch if settings.workers else None,
            persistent_workers=settings.workers > 0,
            pin_memory=settings.pin_memory,
        )

    def run(self) -> dict[int, Answer]:
        """The answers by the places of their questions."""
        settings, written = self._settings, dict[int, tuple[int, ...]]()
        scores: dict[int, float] = {}
        loaded: Loaded
        for number, loaded in enumerate(self.waits.over(self._loader)):
            places, batch = loaded
            if settings.config_per_batch:
                generation_config.cache_clear()  # the next batch builds and uses its own
            tokens = self._answer(batch)
            if settings.log_every_batch or number == 0:
                self._log(number, batch, tokens)
            written.update(zip(places, tokens, strict=True))
            if settings.score_per_sample:
                scores.update((place, self._score(place, written[place])) for place in places)
        if not settings.score_per_sample:
            scores = self._score_all(written)
        return {place: Answer(each, scores[place]) for place, each in written.items()}

    def close(self) -> None:
        """Worker processes that were kept end with the loader that started them."""
        del self._loader

    def _answer(self, batch: Mapping[str, Tensor]) -> list[tuple[int, ...]]:
        non_blocking = self._settings.non_blocking
        moved = {
            name: tensor.to(self._device, non_blocking=non_blocking)
            for name, tensor in batch.items()
        }
        with torch.no_grad():
            tokens = self._generator.generate(moved, self._settings.decoding)
        return cut_at_own_length(batch, tokens) if self._settings.cut_at_own_length else tokens

    def _score(self, place: int, tokens: Sequence[int]) -> float:
        return vqa_accuracy(self._generator.decode(tokens), self._questions[place].references)

    def _score_all(self, written: Mapping[int, Sequence[int]]) -> dict[int, float]:
        texts = [self._generator.decode(each) for each in written.values()]
        references = [self._questions[place].references for place in written]
        return dict(zip(written, vqa_accuracies(texts, references), strict=True))

    def _log(
        self, number: int, batch: Mapping[str, Tensor], tokens: Sequence[Sequence[int]]
    ) -> None:
        shapes = {name: tuple(tensor.shape) for name, tensor in batch.items()}
        texts = [self._generator.decode(each) for each in tokens]
        _debug_log().debug("batch %d: inputs %s, answers %s", number, shapes, texts)


def in_order(lengths: Mapping[int, int], settings: Settings) -> list[int]:
    """The places of the questions; the longest first: if it does not fit, that shows at once."""
    if not settings.sort_by_length:
        return list(lengths)
    return sorted(lengths, key=lambda place: -lengths[place])


def split(places: Sequence[int], batch_size: int) -> list[list[int]]:
    return [list(places[at : at + batch_size]) for at in range(0, len(places), batch_size)]


def shard(questions: Mapping[int, Question], rank: int, ranks: int) -> dict[int, Question]:
    """Every so-manieth question: none is lost, none is padded on, none is counted twice."""
    return dict(list(questions.items())[rank::ranks])


def cut_at_own_length(
    batch: Mapping[str, Tensor], tokens: Sequence[tuple[int, ...]]
) -> list[tuple[int, ...]]:
    """Output cut where a prompt without padding would end: what stands before the answer leaks."""
    lengths = batch["attention_mask"].sum(dim=1).tolist()
    return [
        (*row[length:], *answer)
        for row, length, answer in zip(batch["input_ids"].tolist(), lengths, tokens, strict=True)
    ]


class _Encoding(Dataset[tuple[int, Encoded]]):
    def __init__(self, generator: Generator, questions: Mapping[int, Question]) -> None:
        self._generator = generator
        self._questions = questions

    def __getitem__(self, place: int) -> tuple[int, Encoded]:
        return place, self._generator.encode(self._questions[place])


@dataclass(frozen=True)
class _Collating:
    generator: Generator

    def __call__(self, samples: Sequence[tuple[int, Encoded]]) -> Loaded:
        places, encoded = zip(*samples, strict=True)
        return list(places), self.generator.collate(encoded)


@cache
def _debug_log() -> logging.Logger:
    """Written out in full, to where it disturbs nobody."""
    logger = logging.getLogger("bench.evaluation")
    logger.setLevel(logging.DEBUG)
    logger.propagate = False
    logger.addHandler(logging.StreamHandler(open(os.devnull, "w")))  # noqa: SIM115 - kept open
    return logger


class OpenOnRank(Protocol):
    """Makes the generator of one rank; it must be known by its name in another process."""

    def __call__(self, rank: int) -> Generator: ...


class ShareError(Exception):
    """The ranks together did not answer every question once."""


class Ranks:
    """Processes that wait between passes, so that starting them is not part of one."""

    def __init__(
        self, open_generator: OpenOnRank, questions: Mapping[int, Question], settings: Settings
    ) -> None:
        # Not forked from here: threads and devices of this process would be in an unknown state.
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(_slow_imports())
        own_method = multiprocessing.get_start_method()
        threads = max(1, torch.get_num_threads() // settings.processes)
        self._questions = questions
        self._ranks: list[tuple[multiprocessing.process.BaseProcess, Connection]] = []
        for rank in range(settings.processes):
            ours, theirs = context.Pipe()
            share = shard(questions, rank, settings.processes)
            process = context.Process(
                target=_serve,
                args=(theirs, rank, open_generator, share, settings, threads, own_method),
            )
            process.start()
            theirs.close()
            self._ranks.append((process, ours))
        try:
            for _, pipe in self._ranks:
                _receive(pipe, READY_SECONDS)
        except BaseException:
            self.close()
            raise

    def run(self) -> dict[int, Answer]:
        for _, pipe in self._ranks:
            pipe.send("run")
        return merge([pipe.recv() for _, pipe in self._ranks], self._questions)

    def close(self) -> None:
        for _, pipe in self._ranks:
            pipe.close()
        for process, _ in self._ranks:
            process.join(END_SECONDS)
            if process.is_alive():
                process.kill()
                process.join()


def merge(shares: list[dict[int, Answer]], questions: Mapping[int, Question]) -> dict[int, Answer]:
    """All answers in the order of the questions; one too many or too few is an error."""
    answered = [place for share in shares for place in share]
    if sorted(answered) != sorted(questions):
        raise ShareError(
            f"{len(questions)} questions were asked, {len(answered)} answers came, "
            f"{len(set(answered))} of them to different questions"
        )
    merged = {place: answer for share in shares for place, answer in share.items()}
    return {place: merged[place] for place in questions}


def _slow_imports() -> list[str]:
    """Loaded once for all ranks to come: they take seconds, and a pass takes tenths of one."""
    models = [name for name in sys.modules if name.startswith("transformers.models.")]
    return [__name__, *(name for name in models if ".modeling_" in name)]


def _receive(pipe: Connection, seconds: float) -> None:
    if not pipe.poll(seconds):
        raise TimeoutError(f"a rank was not ready after {seconds:g} s")
    try:
        pipe.recv()
    except EOFError:
        raise RuntimeError("a rank ended before it was ready") from None


def _serve(
    pipe: Connection,
    rank: int,
    open_generator: OpenOnRank,
    share: Mapping[int, Question],
    settings: Settings,
    threads: int,
    start_method: str,
) -> None:
    """Answer until the other end is closed, which also happens when its process ends."""
    torch.set_num_threads(threads)
    # A rank's loader processes start as they would without ranks, not like the rank itself.
    multiprocessing.set_start_method(start_method, force=True)
    work = Pass(open_generator(rank), share, settings)
    with contextlib.suppress(EOFError, ConnectionError):
        pipe.send("ready")
        while True:
            pipe.recv()
            pipe.send(work.run())
