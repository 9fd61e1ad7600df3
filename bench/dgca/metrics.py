"""How well are sentences corrected? A sentence counts as right only if every character is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Metrics:
    """Shares from 0 to 1; None where the question has no answer, and then `undefined` says why."""

    precision: float | None  # of the changed sentences, how many became the target
    recall: float | None  # of the erroneous sentences, how many became the target
    f1: float | None
    f2: float | None  # recall counts twice as much: a missed error is the worse one
    fpr: float | None  # of the correct sentences, how many were changed
    wpr: float | None  # of the erroneous sentences, how many were changed into something else
    sentences: int
    undefined: Mapping[str, str] = field(default_factory=dict)


def sentence_metrics(
    sources: Sequence[object], targets: Sequence[object], predictions: Sequence[object]
) -> Metrics:
    """Sentences are whatever compares equal when it is equal: strings, or tuples of ids."""
    triples = list(zip(sources, targets, predictions, strict=True))
    changed = sum(source != made for source, _, made in triples)
    erroneous = sum(source != target for source, target, _ in triples)
    corrected = sum(source != target and target == made for source, target, made in triples)
    spoilt = sum(source == target and target != made for source, target, made in triples)
    mistaken = changed - corrected - spoilt
    precision = _divide(corrected, changed)
    recall = _divide(corrected, erroneous)
    values = {
        "precision": precision,
        "recall": recall,
        "f1": _f_score(precision, recall, 1),
        "f2": _f_score(precision, recall, 2),
        "fpr": _divide(spoilt, len(triples) - erroneous),
        "wpr": _divide(mistaken, erroneous),
    }
    undefined = {name: _REASONS[name] for name, value in values.items() if value is None}
    return Metrics(**values, sentences=len(triples), undefined=undefined)


_REASONS = {
    "precision": "no sentence was changed",
    "recall": "no sentence has an error",
    "f1": "it needs both precision and recall",
    "f2": "it needs both precision and recall",
    "fpr": "every sentence has an error",
    "wpr": "no sentence has an error",
}


def _divide(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def _f_score(precision: float | None, recall: float | None, beta: int) -> float | None:
    """The weighted harmonic mean; its limit 0 where both are 0."""
    if precision is None or recall is None:
        return None
    if precision == recall == 0:
        return 0.0
    return (1 + beta**2) * precision * recall / (beta**2 * precision + recall)
