"""Are the sentence metrics those that can be counted by hand, and None where there are none?"""

from __future__ import annotations

import pytest

from bench.dgca.metrics import Metrics, sentence_metrics


def test_every_outcome_once() -> None:
    triples = [
        ("ab", "ac", "ac"),  # corrected
        ("ab", "ac", "ab"),  # missed
        ("ab", "ac", "ad"),  # changed, but into something else
        ("ab", "ab", "ab"),  # rightly left alone
        ("ab", "ab", "ax"),  # spoilt
    ]
    found = sentence_metrics(*zip(*triples, strict=True))
    assert found.precision == pytest.approx(1 / 3)
    assert found.recall == pytest.approx(1 / 3)
    assert found.f1 == pytest.approx(1 / 3)
    assert found.f2 == pytest.approx(1 / 3)
    assert found.fpr == 1 / 2
    assert found.wpr == pytest.approx(1 / 3)
    assert (found.sentences, found.undefined) == (5, {})


def test_f2_leans_towards_recall() -> None:
    # Three of four erroneous sentences corrected, and three correct ones spoilt.
    sources = "aaaacccc"
    found = sentence_metrics(sources, "bbbbcccc", "bbbadddc")
    assert (found.precision, found.recall) == (0.5, 0.75)
    assert found.f1 == pytest.approx(0.6)
    assert found.f2 == pytest.approx(5 * 0.5 * 0.75 / (4 * 0.5 + 0.75))


def test_nothing_right_is_zero_not_undefined() -> None:
    found = sentence_metrics("a", "b", "c")
    assert (found.precision, found.recall, found.f1, found.f2, found.wpr) == (0, 0, 0, 0, 1)
    assert found.undefined == {"fpr": "every sentence has an error"}


def test_nothing_changed_leaves_no_precision() -> None:
    found = sentence_metrics("ac", "bc", "ac")
    assert (found.precision, found.recall, found.f1, found.f2) == (None, 0, None, None)
    assert found.undefined == {
        "precision": "no sentence was changed",
        "f1": "it needs both precision and recall",
        "f2": "it needs both precision and recall",
    }


def test_no_errors_leave_no_recall() -> None:
    found = sentence_metrics("ab", "ab", "ax")
    assert (found.precision, found.recall, found.fpr, found.wpr) == (0, None, 0.5, None)
    assert found.undefined["recall"] == found.undefined["wpr"] == "no sentence has an error"


def test_no_sentences_leave_nothing() -> None:
    found = sentence_metrics([], [], [])
    assert found == Metrics(None, None, None, None, None, None, 0, found.undefined)
    assert set(found.undefined) == {"precision", "recall", "f1", "f2", "fpr", "wpr"}


def test_tuples_of_ids_are_sentences_too() -> None:
    assert sentence_metrics([(1, 2)], [(1, 3)], [(1, 3)]).f1 == 1


def test_sentences_without_a_partner_are_refused() -> None:
    with pytest.raises(ValueError, match="shorter"):
        sentence_metrics("ab", "ab", "a")
