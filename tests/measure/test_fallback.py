"""Memory runs out: batches shrink, no sample is lost, and answers are those of a run that fits."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
import torch

from diagnose.measure.evaluation.accuracy import find_batch_size, summarize
from diagnose.measure.evaluation.answering import NoRoom, answer_questions
from diagnose.measure.evaluation.fallback import DoesNotFit, Fitting
from diagnose.records.evaluation import Answer, Fallback, RankStep, Step
from diagnose.workload import Decoding
from tests.support.jobs.answers import FakeGenerator, open_questions

pytestmark = pytest.mark.usefixtures("small_heap")

DECODING = Decoding(max_new_tokens=4)
OUT_OF_MEMORY = (
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has 3 GiB"),
    RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 77 bytes."),
    MemoryError(),
)


class Limited:
    """Work that fails above a batch size, in a different way each time, and remembers."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.tried: list[int] = []

    def __call__(self, samples: Sequence[int]) -> list[int]:
        self.tried.append(len(samples))
        if len(samples) > self.limit:
            raise OUT_OF_MEMORY[len(self.tried) % 3]
        return [10 * sample for sample in samples]


def run_all(fitting: Fitting, work: Limited, count: int, at_once: int) -> list[int]:
    """As the evaluation does it: so many samples are there at a time."""
    results = []
    for first in range(0, count, at_once):
        samples = range(first, min(count, first + at_once))
        for part, made in fitting.run(samples, work):
            assert list(part) == [each // 10 for each in made]
            results += made
    return results


def test_every_sample_comes_once_and_in_order_whatever_the_limit() -> None:
    draw = random.Random(0)
    for _ in range(300):
        limit, start, count = draw.randint(1, 40), draw.randint(1, 64), draw.randint(1, 200)
        ceiling, attempts = draw.choice([(None, 0), (64, draw.randint(0, 5))])
        work = Limited(limit)
        # Collecting garbage takes long beside everything else here.
        fitting = Fitting(start, ceiling=ceiling, attempts=attempts, release=lambda: None)
        results = run_all(fitting, work, count, draw.randint(1, 64))
        assert results == [10 * sample for sample in range(count)]
        failed = [tried for tried in work.tried if tried > limit]
        assert [each.batch for each in fitting.fallbacks] == failed
        assert max(work.tried) <= max(start, ceiling or 0)
        # Down from the start, and once for each attempt to grow.
        assert len(failed) <= start.bit_length() + attempts


def test_halves_down_to_single_samples_and_stays_there() -> None:
    work, told = Limited(1), list[Fallback]()
    fitting = Fitting(8, on_fallback=told.append)
    assert run_all(fitting, work, 16, 8) == [10 * sample for sample in range(16)]
    assert work.tried == [8, 4, 2] + [1] * 16
    assert told == fitting.fallbacks
    assert [(each.batch, each.next_batch) for each in told] == [(8, 4), (4, 2), (2, 1)]
    assert str(Fallback(8, 4, "77 bytes")) == (
        "out of memory with a batch of 8 (it asked for 77 bytes more); going on with batches of 4"
    )
    assert str(Fallback(2, 1)) == "out of memory with a batch of 2; going on with single samples"


def test_growth_finds_what_fits_and_never_passes_the_ceiling() -> None:
    work = Limited(13)
    fitting = Fitting(4, ceiling=64, attempts=5)
    for first in range(0, 800, 4):
        list(fitting.run(range(first, first + fitting.batch_size), work))
    # What is left of the samples that were there when a larger batch failed comes in between.
    assert work.tried[:10] == [4, 8, 16, 8, 8, 12, 14, 12, 2, 13]
    assert fitting.batch_size == 13

    free = Fitting(4, ceiling=10, attempts=5)
    for _ in range(5):
        list(free.run(range(free.batch_size), Limited(100)))
    assert free.batch_size == 10


def test_a_single_sample_that_does_not_fit_is_named_and_the_others_are_kept() -> None:
    def work(samples: Sequence[int]) -> list[int]:
        if 2 in samples:
            raise OUT_OF_MEMORY[1]
        return list(samples)

    kept: list[int] = []
    parts = Fitting(4).run(range(8), work)
    with pytest.raises(DoesNotFit) as caught:
        kept.extend(sample for _, made in parts for sample in made)
    assert kept == [0, 1]
    assert caught.value.sample == 2
    assert caught.value.asked_for == "77 bytes"


def test_other_errors_are_not_taken_for_a_lack_of_memory() -> None:
    def work(samples: Sequence[int]) -> None:
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")

    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        list(Fitting(4).run(range(8), work))


def test_release_comes_when_the_tensors_of_the_failure_are_gone() -> None:
    class Held:
        alive = 0

        def __init__(self) -> None:
            Held.alive += 1

        def __del__(self) -> None:
            Held.alive -= 1

    def work(samples: Sequence[int]) -> None:
        held = Held()  # as long as this frame lives, and an exception keeps its frames
        if len(samples) > 1:
            raise MemoryError
        assert held.alive == 1

    seen: list[int] = []
    list(Fitting(2, release=lambda: seen.append(Held.alive)).run(range(2), work))
    assert seen == [0]


def answer_all(generator: FakeGenerator, batch: int, workers: int = 0) -> list[Answer]:
    questions = dict(enumerate(open_questions(None, 11)))
    steps = answer_questions(
        generator, questions, DECODING, Fitting(batch), max_crops=2, workers=workers
    )
    return [answer for step in steps for answer in step.answers]


@pytest.mark.parametrize("limit", ["1", "2", "5"])
def test_answers_are_those_of_a_run_that_never_failed(
    limit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    never_failed = answer_all(FakeGenerator(), 1)
    assert [answer.index for answer in never_failed] == list(range(11))
    monkeypatch.setenv("ANSWERS_LIMIT", limit)
    generator = FakeGenerator()
    assert answer_all(generator, 8) == never_failed
    assert generator.batches[0] == 8


def test_loader_workers_change_nothing() -> None:
    assert answer_all(FakeGenerator(), 4, workers=1) == answer_all(FakeGenerator(), 4)


def test_no_room_for_one_says_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANSWERS_LIMIT", "0")
    with pytest.raises(NoRoom) as caught:
        answer_all(FakeGenerator(), 4)
    assert "question '0' does not fit even alone" in str(caught.value)
    assert "its 2 tokens, 2 image tiles and up to 4 new ones need 20.00 MiB more" in str(
        caught.value
    )


def made(*indices: int, seconds: float = 1.0, fallbacks: tuple[Fallback, ...] = ()) -> Step:
    asked = open_questions(None, 4)
    answers = tuple(
        Answer(n, str(n), chr(110 + n), n, 2, 1 + n, asked[n % 4].prompt, asked[n % 4].references)
        for n in indices
    )
    return Step(answers, seconds, fallbacks)


def test_a_row_is_made_of_all_ranks() -> None:
    fallback = Fallback(4, 2)
    steps = [
        RankStep(0, made(0, 2, seconds=3.0)),
        RankStep(1, made(1, seconds=1.0, fallbacks=(fallback,))),
        RankStep(1, made(3, seconds=1.5)),
    ]
    row = summarize(12, steps)
    # The answers to 0 and 2 are right, those to 1 and 3 are not.
    assert (row.max_crops, row.accuracy, row.std, row.num_samples) == (12, 0.5, 0.5, 4)
    assert (row.duration, row.samples_per_second) == (3.0, 4 / 3)
    assert (row.batch_size_used, row.batch_size_by_rank) == (1, (2, 1))
    assert (row.tiles_mean, row.tokens_mean, row.generated_tokens_mean) == (2.5, 2.0, 1.5)
    assert row.fallbacks == 1
    assert [(each.rank, each.fallback) for each in row.fallback_log] == [(1, fallback)]


def test_batch_size_used_is_that_after_the_last_fallback() -> None:
    fallback = (Fallback(4, 2),)
    assert find_batch_size([made(0, 1, 2, 3), made(4, 5, fallbacks=fallback), made(6)]) == 2
    assert find_batch_size([made(0, 1, 2), made(3)]) == 3
    assert find_batch_size([]) == 0
