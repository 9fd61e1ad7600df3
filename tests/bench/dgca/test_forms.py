"""Which forms of the same step compute the same thing, and where does a published one not?"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from bench.data import vocabulary
from bench.dgca.fusion import fuse_in_place, fuse_with_zeros
from bench.dgca.masking import (
    MaskForm,
    get_special_tokens_mask,
    mask_as_published,
    mask_on_device,
    mask_through_tokenizer,
    prepare_batch,
)
from bench.dgca.prompt import (
    PromptEncoder,
    copy_prompts_as_published,
    find_slots,
    loop_prompts,
    scatter_prompts,
)

P, H = 3, 8
VARIABLE = [[1, 4, 2, 9], [5, 5, 3, 1, 1, 7, 2], [9, 8]]
CONSTANT = [[4, 4, 4, 4], [1, 1], [9] * 5]


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


@pytest.mark.parametrize("lengths", VARIABLE + CONSTANT, ids=str)
def test_loop_and_scatter_are_equal_with_their_gradients(lengths: list[int]) -> None:
    embeds, flags, prompts = make_inputs(lengths)
    results: list[list[Tensor]] = []
    for form in (loop_prompts, scatter_prompts):
        made = form(embeds, flags, prompts)
        weights = torch.linspace(-1, 1, made.numel()).view_as(made)
        gradients = torch.autograd.grad((made * weights).sum(), (embeds, prompts))
        results.append([made, *gradients])
    (looped, *ones), (scattered, *others) = results
    assert torch.equal(looped, scattered)
    for one, other in zip(ones, others, strict=True):
        assert (one != 0).any()
        torch.testing.assert_close(one, other, atol=1e-6, rtol=0)


@pytest.mark.parametrize("lengths", CONSTANT, ids=str)
def test_the_published_form_is_right_where_all_sentences_are_equally_long(
    lengths: list[int],
) -> None:
    embeds, flags, prompts = make_inputs(lengths)
    published = copy_prompts_as_published(embeds, flags, prompts)
    assert torch.equal(published, loop_prompts(embeds, flags, prompts))


@pytest.mark.parametrize("lengths", VARIABLE, ids=str)
def test_the_published_form_is_wrong_for_every_sample_unlike_the_first(lengths: list[int]) -> None:
    embeds, flags, prompts = make_inputs(lengths)
    published = copy_prompts_as_published(embeds, flags, prompts)
    right = loop_prompts(embeds, flags, prompts)
    wrong = (published != right).flatten(1).any(1).tolist()
    assert wrong == [length != lengths[0] for length in lengths]
    assert sum(wrong) > 0


def test_prompts_of_low_precision_are_written_into_full_precision() -> None:
    embeds, flags, prompts = make_inputs([2, 5])
    low = prompts.bfloat16()
    looped = loop_prompts(embeds, flags, low)
    assert torch.equal(looped, scatter_prompts(embeds, flags, low))
    assert torch.equal(looped[:, :P], low[:P].float().expand(2, -1, -1))


def test_each_prompt_depends_on_the_others() -> None:
    encoder = PromptEncoder(P, H)
    assert encoder().shape == (2 * P, H)
    encoder()[0].sum().backward()
    assert encoder.embedding.weight.grad is not None
    assert (encoder.embedding.weight.grad.abs().sum(1) > 0).all()


def make_fusion(ids: list[list[int]], vocab: int = 50) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """One sample; candidates that are not [PAD] share the probability as a softmax would."""
    torch.manual_seed(0)
    candidate_ids = torch.tensor([ids])
    scores = torch.randn(candidate_ids.shape).masked_fill(candidate_ids == 0, -1e9)
    probs = torch.softmax(scores, -1).masked_fill(candidate_ids == 0, 0).requires_grad_()
    logits = torch.randn(1, len(ids), vocab, requires_grad=True)
    alpha = torch.rand(1, len(ids), 1, requires_grad=True)
    return logits, candidate_ids, probs, alpha


UNIQUE = [[[7, 8, 9], [3, 4, 0], [5, 0, 0]], [[1, 2, 49], [0, 0, 0]], [[11, 12, 13]] * 6]


@pytest.mark.parametrize("ids", UNIQUE, ids=str)
def test_both_fusions_are_equal_where_candidates_are_unique(ids: list[list[int]]) -> None:
    inputs = make_fusion(ids)
    leaves = inputs[0], inputs[2], inputs[3]
    zeros, in_place = fuse_with_zeros(*inputs), fuse_in_place(*inputs)
    torch.testing.assert_close(zeros, in_place, atol=1e-5, rtol=0)
    for one, other in zip(
        torch.autograd.grad(zeros[..., 1:].sum(), leaves),
        torch.autograd.grad(in_place[..., 1:].sum(), leaves),
        strict=True,
    ):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)


def test_duplicate_candidates_are_summed_in_place_and_overwritten_otherwise() -> None:
    inputs = make_fusion([[7, 7, 9], [3, 4, 5]])
    zeros, in_place = fuse_with_zeros(*inputs).exp(), fuse_in_place(*inputs).exp()
    differs = (zeros - in_place).abs() > 1e-5
    assert differs.nonzero().tolist() == [[0, 0, 7]]
    assert torch.allclose(in_place.sum(-1), torch.ones(1, 2), atol=1e-5)
    assert zeros[0, 0].sum() < 0.999


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


def test_the_published_masking_differs_only_where_characters_are_unknown() -> None:
    for share, some in ((0.0, False), (0.3, True)):
        ids = make_ids(share)
        _, right = mask_on_device(ids, 0.5, generator())
        published_ids, published = mask_as_published(ids, 0.5, generator())
        differs = published != right
        assert differs.any() == some
        assert (ids[differs] == vocabulary.UNK).all()
        assert (published_ids[differs] == vocabulary.MASK).all()


@pytest.mark.parametrize("form", [mask_through_tokenizer, mask_on_device, mask_as_published])
def test_all_maskings_draw_the_same_random_numbers(form: MaskForm) -> None:
    drawn, expected = generator(), generator()
    form(make_ids(0.1), 0.2, drawn)
    torch.rand(16, 40, generator=expected)
    assert torch.equal(drawn.get_state(), expected.get_state())


def test_the_special_ids_of_a_row() -> None:
    assert get_special_tokens_mask([0, 99, 100, 101, 102, 103, 104]) == [1, 0, 1, 1, 1, 1, 0]


def test_an_erroneous_character_is_never_hidden() -> None:
    batch = {
        "input_ids": torch.tensor([[101, 500, 501, 502, 102, 103]]),
        "error_labels": torch.tensor([[-100, 0, 1, 0, -100, -100]]),
    }
    masked = prepare_batch(batch, mask_on_device, rate=1.0)
    assert masked["input_ids"].tolist() == [[101, 103, 501, 103, 102, 103]]
    assert masked["mft_mask"].tolist() == [[False, True, False, True, False, False]]
    assert batch["input_ids"].tolist() == [[101, 500, 501, 502, 102, 103]]
