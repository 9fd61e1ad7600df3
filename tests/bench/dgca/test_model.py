"""Is the corrector the one that was described, and does it train without a single NaN?"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from bench.data import tensors, vocabulary
from bench.dgca.config import DGCAConfig
from bench.dgca.fusion import GatedFusion
from bench.dgca.heads import CandidateHead, DetectorHead
from bench.dgca.loss import compute_loss
from bench.dgca.masking import mask_on_device, prepare_batch
from bench.dgca.model import DGCA, OPTIMISED, ORIGINAL
from bench.dgca.workload import WORKLOAD
from diagnose.measure import jobs
from diagnose.workload import Size

TINY = WORKLOAD.sizes["tiny"]
CPU = torch.device("cpu")
STILL = replace(DGCAConfig.from_size(TINY), dropout=0.0)


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DIAGNOSE_CACHE", str(tmp_path))


def count_millions(model: nn.Module) -> float:
    return round(sum(each.numel() for each in model.parameters()) / 1e6, 2)


def test_it_is_found_by_name_and_the_patient_is_in_its_original_form() -> None:
    assert jobs.load("dgca") is WORKLOAD
    assert list(WORKLOAD.sizes) == ["seed", "small", "ranks", "tiny"]
    model = WORKLOAD.model.build(TINY)
    assert isinstance(model, DGCA)
    assert model.forms is ORIGINAL


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


def test_the_defaults_are_those_of_the_original() -> None:
    config = DGCAConfig.from_size(WORKLOAD.sizes["seed"])
    assert (config.layers, config.hidden, config.heads, config.ffn) == (12, 768, 12, 3072)
    assert (config.vocab, config.length) == (21128, 128)
    assert (config.prompt_length, config.candidates, config.dropout) == (3, 16, 0.1)


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


def test_synthetic_batches_are_equal_and_on_the_device_asked_for() -> None:
    first, second = (WORKLOAD.synthetic_batch(TINY, CPU) for _ in range(2))
    assert all(torch.equal(first[name], second[name]) for name in first)
    on_meta = WORKLOAD.synthetic_batch(TINY, torch.device("meta"))
    assert {tensor.device.type for tensor in on_meta.values()} == {"meta"}


@pytest.mark.parametrize("hold", ["mmap", "preload"])
def test_a_batch_of_the_dataset_by_hand(hold: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.tsv"
    path.write_text("今田\t今天\n", "utf-8")
    rows = WORKLOAD.datasets[hold](TINY, path)
    batch = next(iter(DataLoader(rows, batch_size=2)))
    same, wrong, right = vocabulary.encode("今田天")
    rest = [0] * 22
    by_hand = {
        "input_ids": [101, 101, 101, same, wrong, 102, 102, 102, 103, 103, *rest],
        "attention_mask": [1] * 10 + rest,
        "labels": [-100] * 8 + [same, right] + [-100] * 22,
        "trg_ref_ids": [101, 101, 101, same, right, 102, 102, 102, same, wrong, *rest],
        "block_flag": [1, 1, 1, 0, 0, 1, 1, 1, 0, 0, *rest],
        "error_labels": [-100] * 3 + [0, 1] + [-100] * 27,
    }
    assert list(batch) == [*by_hand, "candidate_ids"]
    for name, row in by_hand.items():
        assert batch[name].tolist() == [row, row]
    candidates = batch["candidate_ids"]
    assert candidates.shape == (2, 32, 16)
    assert candidates[0, [3, 4], 0].tolist() == [same, wrong]
    assert torch.equal(candidates[0, 3:5], candidates[0, 8:10])
    assert right in candidates[0, 9].tolist()
    elsewhere = [place for place in range(32) if place not in (3, 4, 8, 9)]
    assert (candidates[:, elsewhere] == vocabulary.PAD).all()


def test_all_forms_give_the_same_output_and_gradients() -> None:
    torch.manual_seed(0)
    model = DGCA(STILL)
    batch = prepare_batch(WORKLOAD.synthetic_batch(TINY, CPU), mask_on_device)
    results = []
    for forms in (ORIGINAL, OPTIMISED):
        model.forms = forms
        model.zero_grad()
        output = model(batch)
        compute_loss(output, batch, STILL).total.backward()  # type: ignore[no-untyped-call]
        gradients = [each.grad for each in model.parameters() if each.grad is not None]
        results.append((*output, *gradients))
    assert len(results[0]) == 5 + len(list(model.parameters()))
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)


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


def test_the_gate_starts_between_the_two_and_sees_the_detector() -> None:
    gate = GatedFusion(2)
    assert gate.gate.bias.item() == 0
    nn.init.constant_(gate.gate.weight, 1.0)
    alpha = gate(torch.tensor([[[1.0, 2.0]]]), torch.tensor([[0.0]]))
    assert alpha.item() == pytest.approx(torch.sigmoid(torch.tensor(3.5)).item())


def test_the_detector_gives_logits() -> None:
    head = DetectorHead(2, dropout=0.0)
    nn.init.zeros_(head.outer.weight)
    nn.init.constant_(head.outer.bias, -7.0)
    assert head(torch.zeros(1, 3, 2)).tolist() == [[-7.0] * 3]


def test_a_few_steps_on_real_batches_lower_the_loss() -> None:
    torch.manual_seed(0)
    model = WORKLOAD.model.build(TINY)
    batch = next(iter(DataLoader(WORKLOAD.datasets["mmap"](TINY, None), TINY.batch_size)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(5):
        optimizer.zero_grad()
        loss = WORKLOAD.model.loss(model, batch)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]


def test_the_backbone_uses_only_its_own_tensors() -> None:
    assert WORKLOAD.backbone is not None
    assert WORKLOAD.backbone.forward is not None
    model = WORKLOAD.backbone.build(TINY)
    batch = WORKLOAD.synthetic_batch(TINY, CPU)
    assert torch.isfinite(WORKLOAD.backbone.loss(model, batch))
    logits = WORKLOAD.backbone.forward(model, batch)
    assert isinstance(logits, torch.Tensor)
    assert logits.shape == (4, 32, vocabulary.SIZE)


def test_the_report_describes_the_users_data(tmp_path: Path) -> None:
    path = tmp_path / "mine.tsv"
    path.write_text("今田\t今天\n", "utf-8")
    assert WORKLOAD.describe_data is not None
    summary = WORKLOAD.describe_data(TINY, path)
    assert (summary.description, summary.erroneous_rows) == ("mine.tsv, given pairs", 64)
