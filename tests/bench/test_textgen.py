"""Does the language model answer as it should? Batched as alone, and as long as it should."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from bench.data import vocabulary
from bench.generation.language import CharacterLanguage
from bench.textgen.workload import FAMILY as TEXTGEN
from bench.textgen.workload import WORKLOAD
from diagnose.workload import Decoding, Generator, Question

TINY = WORKLOAD.sizes["tiny"]
CPU = torch.device("cpu")
Tokens = list[tuple[int, ...]]


@pytest.fixture(scope="module")
def generator() -> Generator:
    return TEXTGEN.open_generator(TINY.shape, CPU, seed=1)


@pytest.fixture(scope="module")
def questions() -> list[Question]:
    return TEXTGEN.open_questions(None, 8)


def answer(generator: Generator, questions: list[Question], decoding: Decoding) -> Tokens:
    samples = [generator.encode(question) for question in questions]
    return generator.generate(generator.collate(samples), decoding)


def answer_singly(generator: Generator, questions: list[Question], decoding: Decoding) -> Tokens:
    return [tokens for each in questions for tokens in answer(generator, [each], decoding)]


def test_questions_differ_in_length_and_are_the_same_for_every_count(
    questions: list[Question],
) -> None:
    assert TEXTGEN.open_questions(None, 3) == questions[:3]
    assert len({len(each.prompt) for each in questions}) > 3
    assert len({each.key for each in questions}) == len(questions)
    wrong = [each for each in questions if not each.prompt.endswith(each.references[0])]
    assert len(wrong) > len(questions) / 2, "most sentences have errors"


@pytest.mark.parametrize("natural_stop", [True, False])
def test_answers_in_a_batch_are_those_of_each_question_alone(
    generator: Generator, questions: list[Question], natural_stop: bool
) -> None:
    decoding = Decoding(12, natural_stop=natural_stop)
    batched = answer(generator, questions, decoding)
    assert batched == answer_singly(generator, questions, decoding)
    assert len(set(batched)) > len(questions) / 2, "they do not all say the same"
    assert min(map(min, batched)) >= vocabulary.FIRST_CHARACTER, "only text"
    assert natural_stop or {len(each) for each in batched} == {12}


def test_a_natural_stop_is_where_the_reference_ends(
    generator: Generator, questions: list[Question]
) -> None:
    longest = max(len(each.references[0]) for each in questions)
    lengths = [len(each) for each in answer(generator, questions, Decoding(longest))]
    assert lengths == [len(each.references[0]) for each in questions]
    cut = [len(each) for each in answer(generator, questions, Decoding(9))]
    assert cut == [min(9, length) for length in lengths]


def test_weights_come_from_the_seed_and_take_the_precision_asked_for() -> None:
    first, again, other = (
        TEXTGEN.open_generator(TINY.shape, CPU, dtype=torch.bfloat16, seed=seed)
        for seed in (3, 3, 4)
    )
    assert {each.dtype for each in first.model.parameters()} == {torch.bfloat16}
    asked = TEXTGEN.open_questions(None, 2)
    assert answer(first, asked, Decoding(4)) == answer(again, asked, Decoding(4))
    assert answer(first, asked, Decoding(4)) != answer(other, asked, Decoding(4))


def test_characters_are_one_token_each_and_known_words_too() -> None:
    language = CharacterLanguage(vocabulary.COMMON_SIZE, ("navy", "uniform"))
    ids = language.encode_answer("Navy uniform, 天x")
    assert len(ids) == 6
    assert language.decode(ids) == "navy uniform, 天x"
    assert language.decode([5]) == "\ufffd", "random weights write ids that mean nothing"


def test_only_answers_are_labelled() -> None:
    rows = WORKLOAD.datasets["questions"](TINY, None)
    batch = next(iter(DataLoader(rows, TINY.batch_size, collate_fn=WORKLOAD.collate)))
    assert (batch["labels"][batch["attention_mask"] == 0] == -100).all()
    (question,) = TEXTGEN.open_questions(None, 1)
    kept = batch["labels"][0][batch["labels"][0] != -100]
    answer_ids = vocabulary.encode(question.references[0], TINY.shape["vocab"])
    assert kept.tolist() == [*answer_ids, vocabulary.SEP]


def test_the_users_own_questions_are_described(tmp_path: Path) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_text('{"question": "ab", "answer": "c"}\n{"question": "abcd", "answer": "c"}')
    assert WORKLOAD.describe_data is not None
    summary: Any = WORKLOAD.describe_data(TINY, path)
    assert (summary.description, summary.sentences) == ("mine.jsonl", 2)
    assert (summary.unit, summary.length_unit) == ("questions", "tokens")
    assert summary.length_quantiles["max"] == 6
    assert summary.padding_share == pytest.approx(1 - 10 / 12)
