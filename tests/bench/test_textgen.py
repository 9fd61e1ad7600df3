"""Does the language model answer as it should? Batched as alone, and as long as it should."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from bench import textgen
from bench.data import vocabulary
from bench.generation.language import CharacterLanguage
from bench.textgen.workload import WORKLOAD
from diagnose.measure import jobs
from diagnose.workload import Decoding, Generator, Question

TINY = WORKLOAD.sizes["tiny"]
CPU = torch.device("cpu")
Tokens = list[tuple[int, ...]]


@pytest.fixture(scope="module")
def generator() -> Generator:
    return textgen.open_generator(TINY.shape, CPU, seed=1)


@pytest.fixture(scope="module")
def questions() -> list[Question]:
    return textgen.open_questions(None, 8)


def answer(generator: Generator, questions: list[Question], decoding: Decoding) -> Tokens:
    samples = [generator.encode(question) for question in questions]
    return generator.generate(generator.collate(samples), decoding)


def answer_singly(generator: Generator, questions: list[Question], decoding: Decoding) -> Tokens:
    return [tokens for each in questions for tokens in answer(generator, [each], decoding)]


def test_it_is_found_by_name_and_has_its_sizes() -> None:
    assert jobs.load("textgen") is WORKLOAD
    assert list(WORKLOAD.sizes) == ["seed", "small", "tiny"]


@pytest.mark.parametrize(("size", "millions"), [("seed", 494.0), ("small", 12.3)])
def test_it_has_the_parameters_of_its_model(size: str, millions: float) -> None:
    """494 million are those of Qwen2.5-0.5B, whose output layer is its embedding."""
    with torch.device("meta"):
        model = WORKLOAD.model.build(WORKLOAD.sizes[size])
    assert round(sum(each.numel() for each in model.parameters()) / 1e6, 1) == millions


def test_questions_differ_in_length_and_are_the_same_for_every_count(
    questions: list[Question],
) -> None:
    assert textgen.open_questions(None, 3) == questions[:3]
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


def test_padding_is_on_the_left_and_masked(generator: Generator, questions: list[Question]) -> None:
    samples = [generator.encode(question) for question in questions]
    batch = generator.collate(samples)
    for row, mask, sample in zip(batch["input_ids"], batch["attention_mask"], samples, strict=True):
        length = len(sample.input_ids)
        assert row[-length:].equal(sample.input_ids)
        assert mask.tolist() == [0] * (len(row) - length) + [1] * length


def test_cutting_at_the_own_length_would_leak_the_question(
    generator: Generator, questions: list[Question]
) -> None:
    """What the report about batched evaluation published."""
    batch = generator.collate([generator.encode(question) for question in questions])
    written = generator.model.generate(  # type: ignore[operator]
        **{name: batch[name] for name in ("input_ids", "attention_mask")},
        max_new_tokens=4, do_sample=False, pad_token_id=vocabulary.PAD,
    )  # fmt: skip
    shortest = int(batch["attention_mask"].sum(dim=1).argmin())
    own = int(batch["attention_mask"][shortest].sum())
    leaked = written[shortest, own:][: -4 or None].tolist()
    assert set(leaked) & set(batch["input_ids"][shortest].tolist()) - {vocabulary.PAD}


def test_a_natural_stop_is_where_the_reference_ends(
    generator: Generator, questions: list[Question]
) -> None:
    longest = max(len(each.references[0]) for each in questions)
    lengths = [len(each) for each in answer(generator, questions, Decoding(longest))]
    assert lengths == [len(each.references[0]) for each in questions]
    cut = [len(each) for each in answer(generator, questions, Decoding(9))]
    assert cut == [min(9, length) for length in lengths]


def test_a_fixed_length_is_the_same_for_all(
    generator: Generator, questions: list[Question]
) -> None:
    fixed = answer(generator, questions, Decoding(20, natural_stop=False))
    assert {len(each) for each in fixed} == {20}
    assert min(min(each) for each in fixed) >= vocabulary.FIRST_CHARACTER, "only text"


@pytest.mark.parametrize("change", [{"use_cache": False}, {"static_cache": True}])
def test_the_cache_changes_no_answer(
    generator: Generator, questions: list[Question], change: dict[str, bool]
) -> None:
    assert answer(generator, questions, Decoding(8, **change)) == answer(
        generator, questions, Decoding(8)
    )


def test_weights_come_from_the_seed_and_take_the_precision_asked_for() -> None:
    first, again, other = (
        textgen.open_generator(TINY.shape, CPU, dtype=torch.bfloat16, seed=seed)
        for seed in (3, 3, 4)
    )
    assert {each.dtype for each in first.model.parameters()} == {torch.bfloat16}
    asked = textgen.open_questions(None, 2)
    assert answer(first, asked, Decoding(4)) == answer(again, asked, Decoding(4))
    assert answer(first, asked, Decoding(4)) != answer(other, asked, Decoding(4))


def test_characters_are_one_token_each_and_known_words_too() -> None:
    language = CharacterLanguage(vocabulary.COMMON_SIZE, ("navy", "uniform"))
    ids = language.encode_answer("Navy uniform, 天x")
    assert len(ids) == 6
    assert language.decode(ids) == "navy uniform, 天x"
    assert language.decode([5]) == "\ufffd", "random weights write ids that mean nothing"


def test_training_learns_the_answers_and_not_the_questions() -> None:
    torch.manual_seed(0)
    model = WORKLOAD.model.build(TINY)
    rows = WORKLOAD.datasets["questions"](TINY, None)
    batch = next(iter(DataLoader(rows, TINY.batch_size, collate_fn=WORKLOAD.collate)))
    assert (batch["labels"][batch["attention_mask"] == 0] == -100).all()
    question = textgen.open_questions(None, 1)[0]
    kept = batch["labels"][0][batch["labels"][0] != -100]
    assert kept.tolist() == [
        *vocabulary.encode(question.references[0], TINY.shape["vocab"]), vocabulary.SEP
    ]  # fmt: skip
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(5):
        optimizer.zero_grad()
        loss = WORKLOAD.model.loss(model, batch)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]


def test_the_users_own_questions_are_described(tmp_path: Path) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_text('{"question": "ab", "answer": "c"}\n{"question": "abcd", "answer": "c"}')
    assert WORKLOAD.describe_data is not None
    summary: Any = WORKLOAD.describe_data(TINY, path)
    assert (summary.description, summary.sentences) == ("mine.jsonl", 2)
    assert (summary.unit, summary.length_unit) == ("questions", "tokens")
    assert summary.length_quantiles["max"] == 6
    assert summary.padding_share == pytest.approx(1 - 10 / 12)
