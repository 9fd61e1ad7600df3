"""Which characters of the source are hidden in this step? Three ways to spare the special ones.

Hiding some correct characters teaches the model to use the context. All three draw one random
number per place, so that from the same generator state they differ only in what they spare.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

import torch
from torch import Tensor

from bench.data import vocabulary

MASK_RATE = 0.2  # of ReLM

MaskForm = Callable[[Tensor, float, torch.Generator | None], tuple[Tensor, Tensor]]

_PUBLISHED = sorted(set(vocabulary.SPECIAL) - {vocabulary.UNK})


def mask_through_tokenizer(
    input_ids: Tensor, rate: float, generator: torch.Generator | None
) -> tuple[Tensor, Tensor]:
    """As the job was first written: every row through Python lists, and back to the device."""
    rows = input_ids.tolist()
    flags = [get_special_tokens_mask(row) for row in rows]
    special = torch.tensor(flags, dtype=torch.bool, device=input_ids.device)
    return _mask(input_ids, special, rate, generator)


def mask_on_device(
    input_ids: Tensor, rate: float, generator: torch.Generator | None
) -> tuple[Tensor, Tensor]:
    """The same comparison without leaving the device."""
    special = _is_one_of(input_ids, vocabulary.SPECIAL)
    return _mask(input_ids, special, rate, generator)


def mask_as_published(
    input_ids: Tensor, rate: float, generator: torch.Generator | None
) -> tuple[Tensor, Tensor]:
    """As the fix was published: [UNK] is forgotten, so unknown characters may be hidden too."""
    special = _is_one_of(input_ids, _PUBLISHED)
    return _mask(input_ids, special, rate, generator)


def prepare_batch(
    batch: Mapping[str, Tensor],
    mask_form: MaskForm,
    generator: torch.Generator | None = None,
    rate: float = MASK_RATE,
) -> dict[str, Tensor]:
    """The batch with characters hidden, and `mft_mask` that says which.

    Erroneous characters stay visible: hidden, they could no longer be found out.
    """
    visible = batch["input_ids"]
    hidden, mask = mask_form(visible, rate, generator)
    erroneous = batch["error_labels"] == 1
    mask = mask & ~erroneous
    input_ids = torch.where(mask, hidden, visible)
    return {**batch, "input_ids": input_ids, "mft_mask": mask}


def get_special_tokens_mask(ids: Sequence[int]) -> list[int]:
    """What the tokenizer's method of this name gives for a row that has its special ids."""
    return [1 if each in vocabulary.SPECIAL else 0 for each in ids]


def _is_one_of(input_ids: Tensor, special: Collection[int]) -> Tensor:
    found = torch.zeros_like(input_ids, dtype=torch.bool)
    for each in special:
        found |= input_ids == each
    return found


def _mask(
    input_ids: Tensor, special: Tensor, rate: float, generator: torch.Generator | None
) -> tuple[Tensor, Tensor]:
    drawn = torch.rand(input_ids.shape, generator=generator, device=input_ids.device)
    mask = (drawn < rate) & ~special
    return input_ids.masked_fill(mask, vocabulary.MASK), mask
