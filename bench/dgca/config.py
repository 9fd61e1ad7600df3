"""How large is the corrector, and how are the terms of its loss weighed?"""

from __future__ import annotations

from dataclasses import dataclass

from bench.data import confusion, tensors, vocabulary
from diagnose.workload import Size

GRADIENT_NORM_MOST = 1.0


@dataclass(frozen=True)
class DGCAConfig:
    """Dimensions and weights; the defaults are those of the original job."""

    layers: int
    hidden: int
    heads: int
    ffn: int
    length: int
    vocab: int = vocabulary.SIZE
    prompt_length: int = tensors.PROMPT_LENGTH
    candidates: int = confusion.CANDIDATES
    dropout: float = 0.1
    # An error position counts 1 + 2 times in the correction, 3 times in the detection.
    error_position_weight: float = 2.0
    detector_pos_weight: float = 3.0
    detector_loss_weight: float = 1.0
    rank_loss_weight: float = 0.5
    rank_margin: float = 0.5
    aux_mlm_loss_weight: float = 1.0

    @classmethod
    def from_size(cls, size: Size) -> DGCAConfig:
        assert size.sequence_length is not None
        dimensions = {name: size.shape[name] for name in ("layers", "hidden", "heads", "ffn")}
        vocab = int(size.shape.get("vocab", vocabulary.SIZE))
        return cls(**dimensions, length=size.sequence_length, vocab=vocab)
