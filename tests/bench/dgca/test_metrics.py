"""Are the sentence metrics those that can be counted by hand, and None where there are none?"""

from __future__ import annotations

import pytest

from bench.dgca.evaluate import sentence_metrics

BOTH = "it needs both precision and recall"
NO_ERROR, ALL_WRONG = "no sentence has an error", "every sentence has an error"


@pytest.mark.parametrize(
    ("sources", "targets", "predictions", "expected", "undefined"),
    [
        # Corrected, missed, changed into something else, rightly left alone, spoilt.
        ("aaaaa", "cccaa", "cadax", (1 / 3, 1 / 3, 1 / 3, 1 / 3, 1 / 2, 1 / 3), {}),
        # Three of four erroneous sentences corrected, three correct ones spoilt: F2 leans towards
        # recall.
        ("aaaacccc", "bbbbcccc", "bbbadddc", (0.5, 0.75, 0.6, 1.875 / 2.75, 0.75, 0.0), {}),
        # Nothing right is zero, not undefined.
        ("a", "b", "c", (0, 0, 0, 0, None, 1), {"fpr": ALL_WRONG}),
        (
            "ac",
            "bc",
            "ac",
            (None, 0, None, None, 0, 0),
            {"precision": "no sentence was changed", "f1": BOTH, "f2": BOTH},
        ),
        (
            "ab",
            "ab",
            "ax",
            (0, None, None, None, 0.5, None),
            {"recall": NO_ERROR, "wpr": NO_ERROR, "f1": BOTH, "f2": BOTH},
        ),
        ([(1, 2)], [(1, 3)], [(1, 3)], (1, 1, 1, 1, None, 0), {"fpr": ALL_WRONG}),
    ],
)
def test_metrics_by_hand(
    sources: str,
    targets: str,
    predictions: str,
    expected: tuple[float | None, ...],
    undefined: dict[str, str],
) -> None:
    found = sentence_metrics(sources, targets, predictions)
    values = (found.precision, found.recall, found.f1, found.f2, found.fpr, found.wpr)
    assert values == pytest.approx(expected)
    assert (found.sentences, found.undefined) == (len(sources), undefined)


def test_no_sentences_leave_nothing_and_one_without_a_partner_is_refused() -> None:
    nothing = sentence_metrics([], [], [])
    assert set(nothing.undefined) == {"precision", "recall", "f1", "f2", "fpr", "wpr"}
    with pytest.raises(ValueError, match="shorter"):
        sentence_metrics("ab", "ab", "a")
