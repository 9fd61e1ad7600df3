"""Is the corrector the one that was described, and does it train without a single NaN?"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from bench.data import tensors, vocabulary
from bench.dgca.config import DGCAConfig
from bench.dgca.model import DGCA, OPTIMISED, ORIGINAL, CandidateHead
from bench.dgca.workload import WORKLOAD
from diagnose.workload import Size

TINY = WORKLOAD.sizes["tiny"]
CPU = torch.device("cpu")
STILL = replace(DGCAConfig.from_size(TINY), dropout=0.0)


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DIAGNOSE_CACHE", str(tmp_path))


def count_millions(model: nn.Module) -> float:
    return round(sum(each.numel() for each in model.parameters()) / 1e6, 2)


def test_at_size_seed_it_has_the_parameters_of_the_original() -> None:
    assert WORKLOAD.backbone is not None
    with torch.device("meta"):
        model = WORKLOAD.model.build(WORKLOAD.sizes["seed"])
        backbone = WORKLOAD.backbone.build(WORKLOAD.sizes["seed"])
    assert isinstance(model, DGCA)
    assert count_millions(model) == 128.87
    assert count_millions(backbone) == count_millions(model.bert) == 102.29
    assert count_millions(model.prompt) == 25.39
    assert count_millions(model.detector) == count_millions(model.candidate) == 0.59
    assert sum(each.numel() for each in model.fusion.parameters()) == 770


@pytest.mark.parametrize("size", WORKLOAD.sizes.values(), ids=list(WORKLOAD.sizes))
def test_a_synthetic_batch_is_a_batch_of_the_dataset(size: Size) -> None:
    made = WORKLOAD.synthetic_batch(size, CPU)
    real = tensors.to_tensors([("今田", "今天")], size.sequence_length or 0)
    assert list(made) == list(tensors.INPUTS)
    for name, tensor in made.items():
        assert tensor.shape == (size.batch_size, *real[name].shape[1:])
        assert tensor.dtype == real[name].dtype
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
    embedding = nn.Embedding(9, 4)
    hidden = torch.randn(1, 2, 4, requires_grad=True)
    probs = head(hidden, torch.tensor([[[0, 0, 0], [5, 0, 6]]]), embedding)
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
    assert isinstance(logits, torch.Tensor)
    assert logits.shape == (4, 32, vocabulary.SIZE)
