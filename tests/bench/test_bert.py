"""Is the BERT workload the model and the data that it claims to be?"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader

from bench.bert import WORKLOAD
from bench.data import vocabulary
from diagnose.measure import jobs
from diagnose.workload import Size

TINY = WORKLOAD.sizes["tiny"]
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DIAGNOSE_CACHE", str(tmp_path))


def test_it_is_found_by_name_and_has_its_sizes() -> None:
    assert jobs.load("bert") is WORKLOAD
    assert list(WORKLOAD.sizes) == ["seed", "small", "tiny"]
    assert WORKLOAD.size(None, "cpu")[0] == "small"
    assert WORKLOAD.size(None, "cuda")[0] == "seed"


def test_at_size_seed_it_has_the_parameters_of_bert_base_chinese() -> None:
    with torch.device("meta"):
        model = WORKLOAD.model.build(WORKLOAD.sizes["seed"])
    assert round(sum(each.numel() for each in model.parameters()) / 1e6, 2) == 102.29


@pytest.mark.parametrize("size", WORKLOAD.sizes.values(), ids=list(WORKLOAD.sizes))
def test_a_synthetic_batch_is_full_and_labelled_on_its_second_half(size: Size) -> None:
    batch = WORKLOAD.synthetic_batch(size, CPU)
    length = size.sequence_length
    assert length is not None
    for tensor in batch.values():
        assert tensor.shape == (size.batch_size, length)
        assert tensor.dtype == torch.int64
    assert batch["input_ids"].min() > vocabulary.MASK
    assert batch["input_ids"].max() < vocabulary.SIZE
    assert batch["attention_mask"].all()
    assert (batch["labels"][:, : length // 2] == -100).all()
    assert (batch["labels"][:, length // 2 :] >= 0).all()


def test_synthetic_batches_are_equal_and_on_the_device_asked_for() -> None:
    first, second = (WORKLOAD.synthetic_batch(TINY, CPU) for _ in range(2))
    assert all(torch.equal(first[name], second[name]) for name in first)
    on_meta = WORKLOAD.synthetic_batch(TINY, torch.device("meta"))
    assert {tensor.device.type for tensor in on_meta.values()} == {"meta"}


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


def test_inference_gives_logits_and_computes_no_loss() -> None:
    batch = WORKLOAD.synthetic_batch(TINY, CPU)
    model = WORKLOAD.model.build(TINY)
    received = []
    model.register_forward_pre_hook(
        lambda _module, _args, inputs: received.extend(inputs), with_kwargs=True
    )
    assert WORKLOAD.model.forward is not None
    logits = WORKLOAD.model.forward(model, batch)
    assert received == ["input_ids", "attention_mask"]
    assert isinstance(logits, torch.Tensor)
    assert logits.shape == (TINY.batch_size, TINY.sequence_length, vocabulary.SIZE)


@pytest.mark.parametrize("hold", ["mmap", "preload"])
def test_the_default_data_have_the_rows_asked_for(hold: str) -> None:
    rows = WORKLOAD.datasets[hold](TINY, None)
    batch = next(iter(DataLoader(rows, TINY.batch_size)))
    assert len(rows) == TINY.shape["rows"]  # type: ignore[arg-type]
    assert list(batch) == ["input_ids", "attention_mask", "labels"]
    assert batch["input_ids"].shape == (TINY.batch_size, TINY.sequence_length)


def test_the_users_own_file_is_used(tmp_path: Path) -> None:
    path = tmp_path / "mine.tsv"
    path.write_text("今田\t今天\n", "utf-8")
    row = WORKLOAD.datasets["preload"](TINY, path)[5]
    assert row["labels"][row["labels"] != -100].tolist() == vocabulary.encode("今天")
    assert WORKLOAD.describe_data is not None
    summary = WORKLOAD.describe_data(TINY, path)
    assert summary.description == "mine.tsv, given pairs"
    assert (summary.sentences, summary.rows, summary.erroneous_rows) == (1, 64, 64)
