"""The scores against values computed by hand from their definitions."""

from __future__ import annotations

import math

import pytest

from diagnose.measure.evaluation.scores import (
    METRICS,
    Judged,
    Score,
    bleu,
    exact_match,
    rouge_l,
    rouge_n,
    score,
    split_words,
    vqa_accuracies,
    vqa_accuracy,
)


@pytest.mark.parametrize(
    ("text", "references", "right"),
    [
        ("two dogs", ("two dogs",), 1.0),
        ("  two   dogs\n", ("one dog", "two dogs"), 1.0),
        ("Two dogs", ("two dogs",), 0.0),
        ("", ("two dogs",), 0.0),
    ],
)
def test_exact_match(text: str, references: tuple[str, ...], right: float) -> None:
    assert exact_match(text, references) == right


def test_words_are_letters_and_digits_or_one_han_character() -> None:
    assert split_words("It's 3 o'clock: 今天好 テスト!") == [
        *("it", "s", "3", "o", "clock"),
        *("今", "天", "好"),
        *("テ", "ス", "ト"),
    ]


def test_bleu_of_the_same_text_is_1() -> None:
    text = "the cat is on the mat"
    assert bleu([Judged(text, ("something else entirely now", text))]) == Score(1.0)


def test_bleu_from_its_definition() -> None:
    # 7 words against 6: 1-grams 5/7 ("the" counts twice, "mat" once), 2-grams 3/6 ("the cat",
    # "on the", "the mat"), 3-grams 1/5 ("on the mat"), and no 4-gram is right.
    wrong = Judged("the cat sat there on the mat", ("the cat is on the mat",))
    assert bleu([wrong]) == Score(0.0)
    # 8 words: 1-grams 8/8, 2-grams 7/7 ... of the first five words only 4-grams are few.
    answer = Judged("a b c d x", ("a b c d e f",))
    precisions = (4 / 5, 3 / 4, 2 / 3, 1 / 2)
    expected = math.prod(precisions) ** (1 / 4) * math.exp(1 - 6 / 5)
    assert bleu([answer]).value == pytest.approx(expected)


def test_bleu_counts_over_the_corpus_and_clips_repetitions() -> None:
    # Papineni's own example: "the" seven times has 2 right words of 7.
    repeated = Judged(" ".join(["the"] * 7), ("the cat is on the mat", "there is a cat on the mat"))
    right = Judged("a b c d", ("a b c d",))
    precisions = ((2 + 4) / (7 + 4), (0 + 3) / (6 + 3), (0 + 2) / (5 + 2), (0 + 1) / (4 + 1))
    # Of the references with 6 and 7 words, 7 is nearest, so nothing is too short.
    assert bleu([repeated, right]).value == pytest.approx(math.prod(precisions) ** (1 / 4))


def test_bleu_of_short_answers_is_not_defined() -> None:
    found = bleu([Judged("two dogs", ("two dogs",)), Judged("", ("a",))])
    assert found.value is None
    assert "no answer has 4 words" in found.reason


def test_rouge_from_its_definition() -> None:
    # Lin's example: "police kill the gunman" against "police killed the gunman".
    text, reference = "police kill the gunman", "police killed the gunman"
    assert rouge_n(text, reference, 1) == pytest.approx(3 / 4)
    assert rouge_n(text, reference, 2) == pytest.approx(1 / 3)
    assert rouge_l(text, reference) == pytest.approx(3 / 4)
    # The same words in another order: the longest common sequence is "the gunman".
    assert rouge_l("the gunman kill police", reference) == pytest.approx(2 / 4)
    # Different lengths: 2 of 2 and 2 of 6 are F1 = 2 * 2 / 8.
    assert rouge_n("the mat", "the cat is on the mat", 1) == pytest.approx(4 / 8)
    assert rouge_l("", reference) == rouge_n("kill", reference, 2) == 0.0


def test_rouge_takes_the_nearest_reference() -> None:
    judged = [Judged("a b", ("c d", "a b")), Judged("a b", ("a c",))]
    found = {name: each.value for name, each in score("rouge", judged).items()}
    assert found == {"rouge1": 0.75, "rouge2": 0.5, "rougeL": 0.75}


@pytest.mark.parametrize(
    ("agreeing", "accuracy"),
    # Without one of k who agree k - 1 do: (k min(1, (k - 1) / 3) + (10 - k) min(1, k / 3)) / 10
    [(0, 0.0), (1, 0.3), (2, 0.6), (3, 0.9), (4, 1.0), (10, 1.0)],
)
def test_vqa_accuracy_of_ten_annotators(agreeing: int, accuracy: float) -> None:
    references = ["red"] * agreeing + [f"other {n}" for n in range(10 - agreeing)]
    assert vqa_accuracy("red", references) == pytest.approx(accuracy)


@pytest.mark.parametrize(
    ("text", "reference"),
    [("The red Bus.", "red bus"), ("two", "2"), ("a dog", "dog"), ("dont", "don't")],
)
def test_vqa_accuracy_does_not_mind_the_writing(text: str, reference: str) -> None:
    assert vqa_accuracy(text, (reference,)) == 1.0
    assert vqa_accuracy(text, ("cat", reference)) == 1.0
    assert vqa_accuracy(text, ("cat",)) == 0.0


@pytest.mark.parametrize("metric", METRICS)
def test_nothing_answered_is_no_score(metric: str) -> None:
    for found in score(metric, []).values():
        assert found == Score(None, "nothing was answered")


def test_many_answers_at_once_score_like_one_by_one() -> None:
    references = [["Yes", "no."] * 5, ["a dog"], ["two", "2"], ["Yes", "no."] * 5]
    texts = ["yes", "dog", "three", "maybe"]
    single = [vqa_accuracy(text, row) for text, row in zip(texts, references, strict=True)]
    assert vqa_accuracies(texts, references) == single
    assert len(set(single)) > 1
