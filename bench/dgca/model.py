"""What is DGCA? BERT with prompts in its input, and a detector, candidates and a gate behind it.

Each part that has a slow and a fast form takes the one that `Forms` names, so that a
comparison changes one form and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from bench.data import vocabulary
from bench.data.tensors import IGNORED
from bench.dgca.config import DGCAConfig
from bench.dgca.fusion import GatedFusion, fuse_in_place, fuse_labels, fuse_with_zeros
from bench.dgca.prompt import PromptEncoder, loop_prompts, scatter_prompts


class DetectorHead(nn.Module):
    """One logit per place: is the character an error? Its loss wants logits, not probabilities."""

    def __init__(self, hidden: int, dropout: float) -> None:
        super().__init__()
        self.inner = nn.Linear(hidden, hidden)
        self.outer = nn.Linear(hidden, 1)
        self.dropout = nn.Dropout(dropout)

    def forward(self, hidden: Tensor) -> Tensor:
        """(B, L, H) to (B, L)"""
        x = self.dropout(hidden)
        x = torch.tanh(self.inner(x))
        x = self.dropout(x)
        logits: Tensor = self.outer(x)
        return logits.squeeze(-1)


class CandidateHead(nn.Module):
    """A probability for each candidate, from its embedding and the state of its place."""

    def __init__(self, hidden: int, dropout: float) -> None:
        super().__init__()
        self.query = nn.Linear(hidden, hidden)
        self.dropout = nn.Dropout(dropout)

    def forward(self, hidden: Tensor, candidate_ids: Tensor, embedding: nn.Module) -> Tensor:
        """(B, L, H) and (B, L, K) to (B, L, K); 0 for [PAD], so all 0 where nothing else is."""
        query = self.dropout(torch.tanh(self.query(hidden)))
        candidates = embedding(candidate_ids)
        scores = torch.matmul(candidates, query.unsqueeze(-1)).squeeze(-1).float()
        padding = candidate_ids == vocabulary.PAD
        # Not -inf: where all candidates are [PAD] the softmax would be NaN, and filling that with
        # 0 afterwards mends the value but not the gradient.
        scores = scores.masked_fill(padding, torch.finfo(scores.dtype).min)
        probs = torch.softmax(scores, dim=-1)
        return probs.masked_fill(padding, 0.0)


# bert-base-chinese has 512 positions whatever the length in use, and they are trained too.
_POSITIONS = 512


@dataclass(frozen=True)
class Forms:
    """Which of the forms with equal results the model uses."""

    apply_prompt: Callable[[Tensor, Tensor, Tensor], Tensor]
    fuse: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
    keep_hidden_states: bool  # of all layers, although only the last one is used
    # While gradients are wanted, only the probability of each label is mixed: the loss sees no
    # other place and no other character.
    labelled_only: bool = False


ORIGINAL = Forms(loop_prompts, fuse_with_zeros, keep_hidden_states=True)
OPTIMISED = Forms(scatter_prompts, fuse_in_place, keep_hidden_states=False)
# Beyond the original report.
BEST = replace(OPTIMISED, labelled_only=True)


# A tuple and not a dataclass: DistributedDataParallel looks for tensors in tuples.
class Output(NamedTuple):
    """What the heads say about each place."""

    # Vocabulary and candidates mixed: (B, L, V), or with `labelled_only` what the labels get.
    log_probs: Tensor
    logits: Tensor  # (B, L, V), of the vocabulary alone
    detect_logits: Tensor  # (B, L)
    candidate_probs: Tensor  # (B, L, K)
    alpha: Tensor  # (B, L, 1), the candidates' share


class DGCA(nn.Module):
    """The full spelling corrector."""

    def __init__(self, config: DGCAConfig, forms: Forms = OPTIMISED) -> None:
        super().__init__()
        self.config = config
        self.forms = forms
        self.bert = _build_bert(config)
        self.prompt = PromptEncoder(config.prompt_length, config.hidden)
        self.detector = DetectorHead(config.hidden, config.dropout)
        self.candidate = CandidateHead(config.hidden, config.dropout)
        self.fusion = GatedFusion(config.hidden)

    def forward(self, batch: Mapping[str, Tensor]) -> Output:
        words = self.bert.get_input_embeddings()
        candidate_ids = batch["candidate_ids"].long()
        prompts = self.prompt()
        embeds = words(batch["input_ids"])
        embeds = self.forms.apply_prompt(embeds, batch["block_flag"], prompts)
        hidden, logits = self._encode(embeds, batch["attention_mask"])
        detect_logits = self.detector(hidden)
        candidate_probs = self.candidate(hidden, candidate_ids, words)
        alpha = self.fusion(hidden, detect_logits)
        if self.forms.labelled_only and torch.is_grad_enabled():
            seen = batch["labels"] != IGNORED
            log_probs = fuse_labels(
                logits[seen],
                candidate_ids[seen],
                candidate_probs[seen],
                alpha[seen],
                batch["labels"][seen],
            )
        else:
            log_probs = self.forms.fuse(logits, candidate_ids, candidate_probs, alpha)
        return Output(log_probs, logits, detect_logits, candidate_probs, alpha)

    def _encode(self, embeds: Tensor, attention_mask: Tensor) -> tuple[Tensor, Tensor]:
        """The last hidden states and the vocabulary logits."""
        if self.forms.keep_hidden_states:
            result = self.bert(
                inputs_embeds=embeds,
                attention_mask=attention_mask,
                output_hidden_states=True,
            )
            return result.hidden_states[-1], result.logits
        encoded = self.bert.bert(inputs_embeds=embeds, attention_mask=attention_mask)
        hidden = encoded.last_hidden_state
        return hidden, self.bert.cls(hidden)


def _build_bert(config: DGCAConfig) -> Any:
    # Imported here: transformers takes seconds to import, and most commands never build a model.
    from transformers import BertConfig, BertForMaskedLM

    return BertForMaskedLM(
        BertConfig(
            vocab_size=config.vocab,
            num_hidden_layers=config.layers,
            hidden_size=config.hidden,
            num_attention_heads=config.heads,
            intermediate_size=config.ffn,
            hidden_dropout_prob=config.dropout,
            attention_probs_dropout_prob=config.dropout,
            max_position_embeddings=max(_POSITIONS, config.length),
        )
    )
