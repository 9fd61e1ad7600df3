"""How well does the model correct sentences it was not trained on? Training goes on unchanged."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from bench.data.tensors import IGNORED
from bench.dgca.arguments import Options
from bench.dgca.metrics import Metrics, sentence_metrics
from bench.dgca.ranks import Ranks
from bench.dgca.rows import DataFile, load_batches
from bench.dgca.state import keep_random_states
from bench.dgca.trainer import autocast

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
