"""Is each term of the loss the one that can be computed by hand?"""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from bench.dgca.config import DGCAConfig
from bench.dgca.evaluate import sentence_metrics
from bench.dgca.loss import (
    auxiliary_loss,
    compute_loss,
    correction_loss,
    detection_loss,
    ranking_loss,
)
from bench.dgca.model import Output

# One sample of four places: a prompt, a source character, its mask, padding. Five words.
IGNORE = -100
BATCH = {
    "labels": torch.tensor([[IGNORE, IGNORE, 4, IGNORE]]),
    "trg_ref_ids": torch.tensor([[1, 4, 3, 0]]),
    "error_labels": torch.tensor([[IGNORE, 1, IGNORE, IGNORE]], dtype=torch.int8),
    "candidate_ids": torch.tensor(
        [[[0, 0, 0], [3, 4, 0], [3, 4, 0], [0, 0, 0]]], dtype=torch.int16
    ),
}
CONFIG = DGCAConfig(layers=1, hidden=2, heads=1, ffn=2, length=4, vocab=5)


def make_output(**changes: Tensor) -> Output:
    """The right word at the mask has probability 0.5; the detector is undecided."""
    probs = torch.full((1, 4, 5), 0.125)
    probs[0, :, 4] = 0.5
    values = {
        "log_probs": probs.log(),
        "logits": torch.zeros(1, 4, 5),
        "detect_logits": torch.zeros(1, 4),
        "candidate_probs": torch.tensor([[[0, 0, 0], [0.9, 0.1, 0], [0.3, 0.7, 0], [0, 0, 0]]]),
        "alpha": torch.full((1, 4, 1), 0.5),
    }
    return Output(**{**values, **changes})


def test_an_error_position_weighs_three_times_in_the_correction() -> None:
    # The reference at the mask is the source, 3; the label is 4: an error.
    wrong = correction_loss(make_output(), BATCH, 2.0)
    assert wrong.item() == pytest.approx(3 * math.log(2))
    correct = {**BATCH, "trg_ref_ids": torch.tensor([[1, 4, 4, 0]])}
    assert correction_loss(make_output(), correct, 2.0).item() == pytest.approx(math.log(2))
    # A mean over the labelled places: at the second, reference 0 and label 1 differ, so 3 ln 8.
    two = {**BATCH, "labels": torch.tensor([[IGNORE, IGNORE, 4, 1]])}
    expected = (3 * math.log(2) + 3 * math.log(8)) / 2
    assert correction_loss(make_output(), two, 2.0).item() == pytest.approx(expected)


def test_a_missed_error_weighs_three_times_in_the_detection() -> None:
    logits = torch.tensor([[9.0, 1.0, 9.0, 9.0]])
    missed = detection_loss(make_output(detect_logits=logits), BATCH, 3.0)
    assert missed.item() == pytest.approx(3 * math.log(1 + math.exp(-1)))
    correct = {**BATCH, "error_labels": torch.tensor([[IGNORE, 0, IGNORE, IGNORE]])}
    false_alarm = detection_loss(make_output(detect_logits=logits), correct, 3.0)
    assert false_alarm.item() == pytest.approx(math.log(1 + math.exp(1)))
    sure_and_wrong = make_output(detect_logits=torch.full((1, 4), -200.0))
    assert detection_loss(sure_and_wrong, BATCH, 3.0).item() == 600, "still finite"


def test_the_ranking_by_hand() -> None:
    # Target 4 has 0.7, the other has 0.3: relu(0.5 - 0.7 + 0.3). [PAD] and the target add nothing.
    assert ranking_loss(make_output(), BATCH, 0.5).item() == pytest.approx(0.1)
    assert ranking_loss(make_output(), BATCH, 0.3).item() == 0
    unlisted = {**BATCH, "labels": torch.tensor([[IGNORE, IGNORE, 2, IGNORE]])}
    assert ranking_loss(make_output(), unlisted, 0.5).item() == 0


def test_the_auxiliary_term_reads_the_hidden_source_characters() -> None:
    assert auxiliary_loss(make_output(), BATCH).item() == 0
    logits = torch.zeros(1, 4, 5)
    logits[0, 1, 4] = 2.0
    hidden = {**BATCH, "mft_mask": torch.tensor([[False, True, False, False]])}
    expected = math.log(math.exp(2) + 4) - 2
    assert auxiliary_loss(make_output(logits=logits), hidden).item() == pytest.approx(expected)


def test_the_total_weighs_the_terms() -> None:
    batch = {**BATCH, "mft_mask": torch.tensor([[False, True, False, False]])}
    terms = compute_loss(make_output(), batch, CONFIG)
    by_hand = (3 * math.log(2), 3 * math.log(2), 0.1, math.log(5))
    assert [each.item() for each in terms[1:]] == pytest.approx(by_hand)
    expected = by_hand[0] + by_hand[1] + 0.5 * by_hand[2] + by_hand[3]
    assert terms.total.item() == pytest.approx(expected)


def test_a_batch_without_any_label_costs_nothing() -> None:
    nothing = {
        **BATCH,
        "labels": torch.full((1, 4), IGNORE),
        "error_labels": torch.full((1, 4), IGNORE),
        "mft_mask": torch.zeros(1, 4, dtype=torch.bool),
    }
    assert [each.item() for each in compute_loss(make_output(), nothing, CONFIG)] == [0] * 5


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
