"""What is the corrector trained for? To correct, to detect, to rank its candidates, to read.

Every mean is over the places that its term is about, and 0 where there are none.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from bench.data.tensors import IGNORED
from bench.data.vocabulary import PAD
from bench.dgca.config import DGCAConfig
from bench.dgca.model import Output


class LossTerms(NamedTuple):
    """The terms before they are weighed, and their weighted sum."""

    total: Tensor
    correction: Tensor
    detection: Tensor
    ranking: Tensor
    auxiliary: Tensor


def compute_loss(output: Output, batch: Mapping[str, Tensor], config: DGCAConfig) -> LossTerms:
    correction = correction_loss(output, batch, config.error_position_weight)
    detection = detection_loss(output, batch, config.detector_pos_weight)
    ranking = ranking_loss(output, batch, config.rank_margin)
    auxiliary = auxiliary_loss(output, batch)
    total = (
        correction
        + config.detector_loss_weight * detection
        + config.rank_loss_weight * ranking
        + config.aux_mlm_loss_weight * auxiliary
    )
    return LossTerms(total, correction, detection, ranking, auxiliary)


def correction_loss(output: Output, batch: Mapping[str, Tensor], error_weight: float) -> Tensor:
    """Cross entropy of the mixed probabilities; an error position weighs 1 + error_weight."""
    labels, reference = batch["labels"], batch["trg_ref_ids"]
    if output.log_probs.dim() == 1:  # of the labels alone
        labelled = labels != IGNORED
        labels, reference = labels[labelled], reference[labelled]
        losses = -output.log_probs
    else:
        losses = F.nll_loss(
            output.log_probs.flatten(0, -2),
            labels.flatten(),
            ignore_index=IGNORED,
            reduction="none",
        )
    # On the target's half the reference is the source: they differ where the source is wrong.
    weights = 1 + error_weight * (reference != labels).float()
    return _mean(losses.view_as(labels) * weights, labels != IGNORED)


def detection_loss(output: Output, batch: Mapping[str, Tensor], positive_weight: float) -> Tensor:
    """Binary cross entropy of "this source character is wrong"."""
    labels = batch["error_labels"]
    logits = output.detect_logits.float()
    losses = F.binary_cross_entropy_with_logits(
        logits,
        (labels == 1).float(),
        pos_weight=torch.full((), positive_weight, device=logits.device),
        reduction="none",
    )
    return _mean(losses, labels != IGNORED)


def ranking_loss(output: Output, batch: Mapping[str, Tensor], margin: float) -> Tensor:
    """How far the other candidates come within the margin of the right one, where it is listed."""
    ids = batch["candidate_ids"]
    probs = output.candidate_probs
    is_target = ids == batch["labels"].unsqueeze(-1)
    is_other = (ids != PAD) & ~is_target
    target_probs = (probs * is_target).sum(-1, keepdim=True)
    shortfalls = F.relu(margin - target_probs + probs)
    return _mean((shortfalls * is_other).sum(-1), is_target.any(-1))


def auxiliary_loss(output: Output, batch: Mapping[str, Tensor]) -> Tensor:
    """Cross entropy of the plain vocabulary on the source characters that were hidden."""
    hidden = batch.get("mft_mask")
    if hidden is None:
        return output.logits.new_zeros(())
    # Few places are hidden: chosen first, they need no second softmax over all of them.
    logits = output.logits[hidden]
    labels = batch["trg_ref_ids"][hidden]
    losses = F.cross_entropy(logits, labels, reduction="sum")
    return losses / max(1, len(labels))


def _mean(values: Tensor, chosen: Tensor) -> Tensor:
    return (values * chosen).sum() / chosen.sum().clamp(min=1)
