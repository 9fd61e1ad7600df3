"""Is the corrector the one that was described, and does it train without a single NaN?

That its forms give the same results is proven by tests/bench/test_optimizations.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from bench.data import tensors, vocabulary
from bench.dgca.config import DGCAConfig
from bench.dgca.fusion import fuse_in_place, fuse_with_zeros
from bench.dgca.masking import (
    MaskForm,
    mask_as_published,
    mask_on_device,
    mask_through_tokenizer,
    prepare_batch,
)
from bench.dgca.model import DGCA, OPTIMISED, ORIGINAL, CandidateHead
from bench.dgca.prompt import loop_prompts, scatter_prompts
from bench.dgca.workload import WORKLOAD

TINY = WORKLOAD.sizes["tiny"]
CPU = torch.device("cpu")
STILL = replace(DGCAConfig.from_size(TINY), dropout=0.0)


def count_millions(model: nn.Module) -> float:
    return round(sum(each.numel() for each in model.parameters()) / 1e6, 2)


def test_the_patient_is_in_its_original_form_with_the_parts_of_the_original_size() -> None:
    with torch.device("meta"):
        model = WORKLOAD.model.build(WORKLOAD.sizes["seed"])
    assert isinstance(model, DGCA)
    assert model.forms is ORIGINAL
    assert (count_millions(model.bert), count_millions(model.prompt)) == (102.29, 25.39)
    assert count_millions(model.detector) == count_millions(model.candidate) == 0.59
    assert sum(each.numel() for each in model.fusion.parameters()) == 770


def test_synthetic_sentences_differ_in_length_and_have_errors() -> None:
    for size in WORKLOAD.sizes.values():
        made = WORKLOAD.synthetic_batch(size, CPU)
        assert (made["block_flag"].sum(1) == 2 * tensors.PROMPT_LENGTH).all()
        assert len({tuple(row) for row in made["block_flag"].tolist()}) > 1
        assert (made["error_labels"] == 1).any()


def test_the_output_has_its_shapes_and_is_a_distribution() -> None:
    torch.manual_seed(0)
    batch = WORKLOAD.synthetic_batch(TINY, CPU)
    assert WORKLOAD.model.forward is not None
    output = WORKLOAD.model.forward(DGCA(STILL), batch)
    assert isinstance(output, tuple)
    shapes = [tuple(each.shape) for each in output]
    vocabulary_shape, shape = (4, 32, 21128), (4, 32)
    assert shapes == [vocabulary_shape, vocabulary_shape, shape, (*shape, 16), (*shape, 1)]
    log_probs, _, _, candidate_probs, alpha = output
    # Where nothing is a candidate only the vocabulary's share is left.
    listed = (batch["candidate_ids"] != vocabulary.PAD).any(-1)
    expected = torch.where(listed, 1.0, 1 - alpha.squeeze(-1))
    torch.testing.assert_close(log_probs.exp().sum(-1), expected, atol=1e-4, rtol=0)
    torch.testing.assert_close(candidate_probs.sum(-1), listed.float())


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("forms", [ORIGINAL, OPTIMISED])
def test_no_gradient_is_nan_although_padding_has_no_candidate(
    forms: object, autocast: bool
) -> None:
    torch.manual_seed(0)
    model = DGCA(DGCAConfig.from_size(TINY), forms)  # type: ignore[arg-type]
    batch = WORKLOAD.synthetic_batch(TINY, CPU)
    assert (batch["candidate_ids"] == vocabulary.PAD).all(-1).any()
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        loss = WORKLOAD.model.loss(model, batch)
    loss.backward()  # type: ignore[no-untyped-call]
    assert torch.isfinite(loss)
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert torch.isfinite(parameter.grad).all(), name


def test_a_row_of_padding_gets_no_probability_and_gives_no_gradient() -> None:
    head = CandidateHead(4, dropout=0.0)
    hidden = torch.randn(1, 2, 4, requires_grad=True)
    probs = head(hidden, torch.tensor([[[0, 0, 0], [5, 0, 6]]]), nn.Embedding(9, 4))
    assert probs[0, 0].tolist() == [0, 0, 0]
    assert probs[0, 1, 1] == 0
    assert probs[0, 1].sum().item() == pytest.approx(1)
    probs.square().sum().backward()
    assert hidden.grad is not None
    assert hidden.grad[0, 0].tolist() == [0] * 4
    assert torch.isfinite(hidden.grad).all()
    assert (hidden.grad[0, 1] != 0).any()


def test_the_candidate_most_like_the_query_is_the_likeliest() -> None:
    head = CandidateHead(2, dropout=0.0)
    nn.init.eye_(head.query.weight)
    nn.init.zeros_(head.query.bias)
    embedding = nn.Embedding(3, 2, _weight=torch.tensor([[0.0, 0], [1, 0], [0, 1]]))
    probs = head(torch.tensor([[[9.0, 0.0]]]), torch.tensor([[[1, 2]]]), embedding)
    # The query is tanh(9), as good as 1: scores 1 and 0.
    assert probs.flatten().tolist() == pytest.approx([0.7311, 0.2689], abs=1e-4)


def test_the_backbone_uses_only_its_own_tensors() -> None:
    assert WORKLOAD.backbone is not None
    assert WORKLOAD.backbone.forward is not None
    model = WORKLOAD.backbone.build(TINY)
    batch = WORKLOAD.synthetic_batch(TINY, CPU)
    assert torch.isfinite(WORKLOAD.backbone.loss(model, batch))
    logits = WORKLOAD.backbone.forward(model, batch)
    assert isinstance(logits, Tensor)
    assert logits.shape == (4, 32, vocabulary.SIZE)


# --- the forms, by hand ---


@pytest.mark.parametrize("form", [loop_prompts, scatter_prompts])
def test_prompts_are_written_into_their_slots_in_the_precision_of_the_rest(
    form: Callable[[Tensor, Tensor, Tensor], Tensor],
) -> None:
    flags = torch.tensor([[1, 0, 1, 0], [0, 1, 0, 1]])
    embeds = torch.tensor([[[1.0], [2.0], [3.0], [4.0]]] * 2)
    filled = form(embeds, flags, torch.tensor([[10.0], [20.0]]).bfloat16())
    assert filled.squeeze(-1).tolist() == [[10.0, 2.0, 20.0, 4.0], [1.0, 10.0, 3.0, 20.0]]
    assert filled.dtype == torch.float32
    assert embeds.squeeze(-1).tolist() == [[1.0, 2.0, 3.0, 4.0]] * 2


@pytest.mark.parametrize("fuse", [fuse_with_zeros, fuse_in_place])
def test_a_fusion_by_hand(fuse: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]) -> None:
    logits = torch.tensor([[[0.0, 0.0, 0.0, 0.0]]])
    ids, probs = torch.tensor([[[2, 1]]]), torch.tensor([[[0.75, 0.25]]])
    made = fuse(logits, ids, probs, torch.tensor([[[0.4]]])).exp()
    # 0.6 of a quarter each, and 0.4 of 0.75 and 0.25 on ids 2 and 1.
    torch.testing.assert_close(made, torch.tensor([[[0.15, 0.25, 0.45, 0.15]]]))


@pytest.mark.parametrize("form", [mask_through_tokenizer, mask_on_device, mask_as_published])
def test_maskings_spare_the_special_ids_and_draw_the_same_random_numbers(form: MaskForm) -> None:
    ids = torch.tensor([[0, 99, 100, 101, 102, 103, 104, 21127]])
    drawn, expected = (torch.Generator().manual_seed(5) for _ in range(2))
    masked, mask = form(ids, 1.0, drawn)
    torch.rand(ids.shape, generator=expected)
    assert torch.equal(drawn.get_state(), expected.get_state())
    hidden = [99, 104, 21127] if form is not mask_as_published else [99, 100, 104, 21127]
    assert ids[mask].tolist() == hidden
    assert (masked[mask] == vocabulary.MASK).all()
    assert torch.equal(masked[~mask], ids[~mask])


def test_an_erroneous_character_is_never_hidden() -> None:
    batch = {
        "input_ids": torch.tensor([[101, 500, 501, 502, 102, 103]]),
        "error_labels": torch.tensor([[-100, 0, 1, 0, -100, -100]]),
    }
    masked = prepare_batch(batch, mask_on_device, rate=1.0)
    assert masked["input_ids"].tolist() == [[101, 103, 501, 103, 102, 103]]
    assert masked["mft_mask"].tolist() == [[False, True, False, True, False, False]]
    assert batch["input_ids"].tolist() == [[101, 500, 501, 502, 102, 103]]
