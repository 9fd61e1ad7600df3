"""What do the experiments on DGCA share? Real batches, seeded models, and a training trial."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.utils.data import default_collate

from bench.bert import vocabulary_of
from bench.data import tensors, text
from bench.dgca.config import DGCAConfig
from bench.dgca.loss import compute_loss
from bench.dgca.masking import MaskForm, mask_through_tokenizer, prepare_batch
from bench.dgca.model import DGCA, ORIGINAL, Forms
from bench.dgca.state import start_training
from bench.dgca.trainer import Objective, accumulate_gradients, apply_gradients
from bench.optimizations.lab import opened
from diagnose.workload import Lab, OpenTrial, Trial

LEARNING_RATE = 5e-5
Batch = dict[str, Tensor]


@lru_cache(maxsize=4)
def prepared_rows(
    length: int, rows: int, vocab: int, data: Path | None, hold: tensors.Hold
) -> Batch:
    return tensors.prepare(text.read(data), length, rows, hold, vocab=vocab)


def rows_of(lab: Lab, hold: tensors.Hold = "preload") -> Batch:
    assert lab.size.sequence_length is not None
    rows, vocab = lab.size.shape["rows"], vocabulary_of(lab.size)
    return prepared_rows(lab.size.sequence_length, rows, vocab, lab.data, hold)


def real_batch(lab: Lab) -> Batch:
    """The first rows of the real data on the device, in the lab's condition."""
    if lab.condition == "constant lengths":
        batch = _equally_long(lab)
    else:
        dataset = tensors.SentencePairs(rows_of(lab), "preload")
        batch = default_collate([dataset[row] for row in range(lab.size.batch_size)])
    if lab.condition == "duplicate candidates":
        batch["candidate_ids"][..., 1] = batch["candidate_ids"][..., 0]
    return {name: each.to(lab.device) for name, each in batch.items()}


def _equally_long(lab: Lab) -> Batch:
    """Real sentences, cut to the same number of characters."""
    assert lab.size.sequence_length is not None
    room = lab.size.sequence_length // 2 - tensors.PROMPT_LENGTH
    corpus = text.read(lab.data)
    pairs = tensors.make_pairs(corpus, lab.size.shape["rows"])
    long = [(source[:room], target[:room]) for source, target in pairs if len(source) >= room]
    chosen = long[: lab.size.batch_size]
    made = tensors.to_tensors(chosen, lab.size.sequence_length, vocabulary_of(lab.size))
    return {name: made[name] for name in tensors.INPUTS}


def build_model(lab: Lab, forms: Forms) -> DGCA:
    torch.manual_seed(lab.seed)
    return DGCA(DGCAConfig.from_size(lab.size), forms).to(lab.device)


def build_exact_model(lab: Lab, forms: Forms) -> DGCA:
    """Without dropout, so that sides agree, and in training mode: cuDNN refuses the backward pass
    of recurrent layers in the other.
    """
    torch.manual_seed(lab.seed)
    config = replace(DGCAConfig.from_size(lab.size), dropout=0.0)
    return DGCA(config, forms).to(lab.device)


def model_outcome(forms: Forms) -> Callable[[Lab], dict[str, Tensor]]:
    """Outputs, loss and gradients of the whole model, without dropout."""

    def outcome(lab: Lab) -> dict[str, Tensor]:
        model = build_exact_model(lab, forms)
        batch = real_batch(lab)
        output = model(batch)
        loss = compute_loss(output, batch, model.config).total
        torch.autograd.backward(loss)
        return {
            "per sample log-probabilities": output.log_probs.detach(),
            "loss": loss.detach().reshape(1),
            **gradients_of(model),
        }

    return outcome


def labelled_outcome(forms: Forms) -> Callable[[Lab], dict[str, Tensor]]:
    """The same where log-probabilities exist for the labels only."""

    def outcome(lab: Lab) -> dict[str, Tensor]:
        found = model_outcome(forms)(lab)
        log_probs = found.pop("per sample log-probabilities")
        if log_probs.dim() == 3:
            labels = real_batch(lab)["labels"]
            labelled = labels != tensors.IGNORED
            places = log_probs[labelled]
            log_probs = places.gather(-1, labels[labelled].unsqueeze(-1)).squeeze(-1)
        return {"log-probabilities of the labels": log_probs, **found}

    return outcome


def gradients_of(model: nn.Module) -> dict[str, Tensor]:
    """One row of numbers for each part of the model."""
    return {f"gradient of {name}": _gradients(part) for name, part in model.named_children()}


def _gradients(part: nn.Module) -> Tensor:
    found = [p.grad.reshape(-1) for p in part.parameters() if p.grad is not None]
    return torch.cat(found) if found else torch.empty(0)


def forward_trial(forms: Forms) -> OpenTrial:
    """The forward pass as training runs it, with the graph that backward would need."""

    def trial(lab: Lab) -> Trial:
        model, batch = build_model(lab, forms), real_batch(lab)
        return Trial(lambda: model(batch), lab.size.batch_size, lambda: list(model.parameters()))

    return opened(trial)


def training_trial(
    forms: Forms = ORIGINAL,
    mask: MaskForm = mask_through_tokenizer,
    *,
    fused: bool = False,
) -> OpenTrial:
    """A whole optimiser step of the training script on a resident real batch."""

    def trial(lab: Lab) -> Trial:
        model, batch = build_model(lab, forms), real_batch(lab)
        state = start_training(model, LEARNING_RATE, False, fused, lab.device)
        objective = Objective(model, model.config)

        def step() -> None:
            accumulate_gradients(objective, [prepare_batch(batch, mask)], state.scaler, False)
            apply_gradients(state, LEARNING_RATE)

        return Trial(step, lab.size.batch_size)

    return opened(trial)
