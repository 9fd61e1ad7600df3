"""How well does the model correct sentences it was not trained on? Training goes on unchanged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from bench.data.tensors import IGNORED
from bench.dgca.arguments import Options
from bench.dgca.ranks import Ranks
from bench.dgca.rows import DataFile, load_batches
from bench.dgca.state import keep_random_states
from bench.dgca.trainer import autocast


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


Sentence = tuple[int, ...]


@torch.no_grad()
def evaluate(
    model: nn.Module,
    data: DataFile,
    batch_size: int,
    options: Options,
    device: torch.device,
    ranks: Ranks,
) -> Metrics:
    """The metrics over every row once: each process takes its share, and none is counted twice."""
    mine = list(range(ranks.rank, len(data), ranks.world))
    order = [mine[start : start + batch_size] for start in range(0, len(mine), batch_size)]
    was_training = model.training
    found: list[tuple[Sentence, Sentence, Sentence]] = []
    model.eval()
    try:
        with keep_random_states(device):
            for batch in load_batches(data.tensors, order, options):
                moved = {name: tensor.to(device) for name, tensor in batch.items()}
                with autocast(device, options.fp16):
                    predicted = model(moved).log_probs.argmax(-1).cpu()
                found += read_sentences(batch, predicted)
    finally:
        model.train(was_training)
    everything = [each for share in ranks.gather(found) for each in share]
    sources, targets, predictions = zip(*everything, strict=True)
    return sentence_metrics(sources, targets, predictions)


def read_sentences(
    batch: dict[str, Tensor], predicted: Tensor
) -> list[tuple[Sentence, Sentence, Sentence]]:
    """Source, target and prediction of each row, as ids."""
    result = []
    for ids, labels, errors, made in zip(
        batch["input_ids"], batch["labels"], batch["error_labels"], predicted, strict=True
    ):
        answers = labels != IGNORED
        parts = (ids[errors != IGNORED], labels[answers], made[answers])
        source, target, prediction = (tuple(part.tolist()) for part in parts)
        result.append((source, target, prediction))
    return result


def describe(metrics: Metrics) -> str:
    """P 0.512  R 0.430  F1 …; a question without an answer says why."""
    names = {"P": "precision", "R": "recall", "F1": "f1", "F2": "f2", "FPR": "fpr"}
    parts = []
    for short, name in names.items():
        value = getattr(metrics, name)
        parts.append(
            f"{short} – ({metrics.undefined[name]})" if value is None else f"{short} {value:.3f}"
        )
    return f"{'  '.join(parts)}  over {metrics.sentences} sentences"
