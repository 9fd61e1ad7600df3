"""Which forms of the same step compute the same thing, and where does a published one not?"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from bench.data import vocabulary
from bench.dgca.fusion import fuse_in_place, fuse_with_zeros
from bench.dgca.masking import (
    MaskForm,
    mask_as_published,
    mask_on_device,
    mask_through_tokenizer,
    prepare_batch,
)
from bench.dgca.prompt import (
    find_slots,
    loop_prompts,
    scatter_prompts,
)

P, H = 3, 8


def make_flags(lengths: list[int]) -> Tensor:
    """1 on 0..P-1 and on P+n..2P+n-1 of a row with n characters."""
    flags = torch.zeros(len(lengths), 2 * P + 2 * max(lengths), dtype=torch.int8)
    for row, length in enumerate(lengths):
        flags[row, :P] = 1
        flags[row, P + length : 2 * P + length] = 1
    return flags


def make_inputs(lengths: list[int]) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(len(lengths))
    flags = make_flags(lengths)
    embeds = torch.randn(*flags.shape, H, requires_grad=True)
    return embeds, flags, torch.randn(2 * P, H, requires_grad=True)


def test_the_loop_on_a_row_by_hand() -> None:
    flags = torch.tensor([[1, 0, 1, 0]])
    embeds = torch.tensor([[[1.0], [2.0], [3.0], [4.0]]])
    assert find_slots(flags, 2).tolist() == [[0, 2]]
    filled = loop_prompts(embeds, flags, torch.tensor([[10.0], [20.0]]))
    assert filled.tolist() == [[[10.0], [2.0], [20.0], [4.0]]]
    assert embeds.tolist() == [[[1.0], [2.0], [3.0], [4.0]]]


def test_prompts_of_low_precision_are_written_into_full_precision() -> None:
    embeds, flags, prompts = make_inputs([2, 5])
    low = prompts.bfloat16()
    looped = loop_prompts(embeds, flags, low)
    assert torch.equal(looped, scatter_prompts(embeds, flags, low))
    assert torch.equal(looped[:, :P], low[:P].float().expand(2, -1, -1))


@pytest.mark.parametrize("fuse", [fuse_with_zeros, fuse_in_place])
def test_a_fusion_by_hand(fuse: object) -> None:
    assert callable(fuse)
    logits = torch.tensor([[[0.0, 0.0, 0.0, 0.0]]])
    ids, probs = torch.tensor([[[2, 1]]]), torch.tensor([[[0.75, 0.25]]])
    made = fuse(logits, ids, probs, torch.tensor([[[0.4]]])).exp()
    # 0.6 of a quarter each, and 0.4 of 0.75 and 0.25 on ids 2 and 1.
    torch.testing.assert_close(made, torch.tensor([[[0.15, 0.25, 0.45, 0.15]]]))


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(5)


def make_ids(unknown_share: float) -> Tensor:
    torch.manual_seed(1)
    ids = torch.randint(vocabulary.FIRST_CHARACTER, vocabulary.SIZE, (16, 40))
    ids[torch.rand(ids.shape) < unknown_share] = vocabulary.UNK
    ids[:, :3], ids[:, 20:23] = vocabulary.CLS, vocabulary.SEP
    ids[:, 23:36], ids[:, 36:] = vocabulary.MASK, vocabulary.PAD
    return ids


@pytest.mark.parametrize("unknown_share", [0.0, 0.02, 0.5])
@pytest.mark.parametrize("rate", [0.0, 0.2, 1.0])
def test_masking_on_the_device_is_that_of_the_tokenizer(unknown_share: float, rate: float) -> None:
    ids = make_ids(unknown_share)
    before = ids.clone()
    (slow_ids, slow), (fast_ids, fast) = (
        form(ids, rate, generator()) for form in (mask_through_tokenizer, mask_on_device)
    )
    assert torch.equal(slow, fast)
    assert torch.equal(slow_ids, fast_ids)
    assert torch.equal(ids, before)
    if rate == 1.0:
        ordinary = ids >= vocabulary.FIRST_CHARACTER
        assert torch.equal(fast, ordinary)


@pytest.mark.parametrize("form", [mask_through_tokenizer, mask_on_device, mask_as_published])
def test_all_maskings_draw_the_same_random_numbers(form: MaskForm) -> None:
    drawn, expected = generator(), generator()
    form(make_ids(0.1), 0.2, drawn)
    torch.rand(16, 40, generator=expected)
    assert torch.equal(drawn.get_state(), expected.get_state())


def test_an_erroneous_character_is_never_hidden() -> None:
    batch = {
        "input_ids": torch.tensor([[101, 500, 501, 502, 102, 103]]),
        "error_labels": torch.tensor([[-100, 0, 1, 0, -100, -100]]),
    }
    masked = prepare_batch(batch, mask_on_device, rate=1.0)
    assert masked["input_ids"].tolist() == [[101, 103, 501, 103, 102, 103]]
    assert masked["mft_mask"].tolist() == [[False, True, False, True, False, False]]
    assert batch["input_ids"].tolist() == [[101, 500, 501, 502, 102, 103]]
