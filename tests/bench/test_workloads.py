"""Is every built-in workload the model and the data that it claims to be?"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from bench.data import vocabulary
from diagnose.measure import jobs
from diagnose.measure.jobs import load
from diagnose.workload import Workload

CPU = torch.device("cpu")
# Millions of parameters at size seed: those of bert-base-chinese, of the DGCA report, of
# Qwen2.5-0.5B (whose output layer is its embedding), of InternVL3-1B and of Molmo2-4B.
MILLIONS = {
    "bert": 102.29,
    "dgca": 128.87,
    "timeseries": 0.06,
    "textgen": 494.03,
    "vqa": 938.12,
    "molmo": 4850.87,
}
workloads = pytest.mark.parametrize("workload", [*map(load, MILLIONS)], ids=lambda each: each.name)


@pytest.fixture(autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DIAGNOSE_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))


def tensors_of(batch: Any) -> dict[str, torch.Tensor]:
    return batch if isinstance(batch, dict) else dict(zip("xy", batch, strict=True))


def real_batch(workload: Workload) -> Any:
    size, (open_rows, *_) = workload.sizes["tiny"], workload.datasets.values()
    loader = DataLoader(open_rows(size, None), size.batch_size, collate_fn=workload.collate)
    return next(iter(loader))


@workloads
def test_it_is_found_by_name_and_has_its_parameters(workload: Workload) -> None:
    assert list(jobs.BUILT_IN) == list(MILLIONS)
    assert {"seed", "tiny"} <= set(workload.sizes)
    assert workload.size(None, "cuda")[0] == "seed"
    with torch.device("meta"):
        model = workload.model.build(workload.sizes["seed"])
    count = sum(each.numel() for each in model.parameters())
    assert round(count / 1e6, 2) == MILLIONS[workload.name]


@workloads
def test_a_synthetic_batch_is_repeatable_on_its_device_and_like_a_real_one(
    workload: Workload,
) -> None:
    size = workload.sizes["tiny"]
    first, second = (tensors_of(workload.synthetic_batch(size, CPU)) for _ in range(2))
    assert all(torch.equal(first[name], second[name]) for name in first)
    on_meta = tensors_of(workload.synthetic_batch(size, torch.device("meta")))
    assert {tensor.device.type for tensor in on_meta.values()} == {"meta"}
    real = tensors_of(real_batch(workload))
    assert {name: each.dtype for name, each in first.items()} == {
        name: each.dtype for name, each in real.items()
    }
    if workload.generation is None:  # questions differ in length and in tiles
        assert [each.shape for each in first.values()] == [each.shape for each in real.values()]


@workloads
def test_a_few_steps_on_a_real_batch_lower_the_loss(workload: Workload) -> None:
    torch.manual_seed(0)
    model = workload.model.build(workload.sizes["tiny"])
    batch = real_batch(workload)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(5):
        optimizer.zero_grad()
        loss = workload.model.loss(model, batch)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]


def test_bert_is_labelled_where_relm_is_and_infers_without_a_loss() -> None:
    workload = load("bert")
    size = workload.sizes["tiny"]
    batch = workload.synthetic_batch(size, CPU)
    length = size.sequence_length or 0
    assert batch["input_ids"].min() > vocabulary.MASK
    assert batch["attention_mask"].all()
    assert (batch["labels"][:, : length // 2] == -100).all()
    assert (batch["labels"][:, length // 2 :] >= 0).all()
    received: list[str] = []
    model = workload.model.build(size)
    model.register_forward_pre_hook(
        lambda _module, _args, inputs: received.extend(inputs), with_kwargs=True
    )
    assert workload.model.forward is not None
    logits = workload.model.forward(model, batch)
    assert received == ["input_ids", "attention_mask"]
    assert isinstance(logits, torch.Tensor)
    assert logits.shape == (size.batch_size, length, vocabulary.SIZE)


@pytest.mark.parametrize("name", ["bert", "dgca"])
def test_the_users_own_file_is_used(name: str, tmp_path: Path) -> None:
    workload = load(name)
    size, path = workload.sizes["tiny"], tmp_path / "mine.tsv"
    path.write_text("今田\t今天\n", "utf-8")
    for open_rows in workload.datasets.values():
        row = open_rows(size, path)[5]
        assert row["labels"][row["labels"] != -100].tolist() == vocabulary.encode("今天")
    assert workload.describe_data is not None
    summary = workload.describe_data(size, path)
    assert summary.description == "mine.tsv, given pairs"
    assert (summary.sentences, summary.rows, summary.erroneous_rows) == (1, 64, 64)
