from __future__ import annotations

import errno
import hashlib
import json
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from bench.dgca import checkpoint
from bench.dgca.state import TrainingState, read_random_states, start_training
from diagnose.workload import WorkloadError
from tests.support.dgca_runs import Attack

RECIPE = {"layers": 2, "seed": 42}
CPU = torch.device("cpu")


class Tied(nn.Module):
    """As BERT: the output layer is the embedding, and one bias has two names."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(10, 4)
        self.decoder = nn.Linear(4, 10)
        self.decoder.weight = self.words.weight
        self.bias = self.decoder.bias
        self.register_buffer("places", torch.arange(3))

    def forward(self, ids: Tensor) -> Tensor:
        result: Tensor = self.decoder(nn.functional.dropout(self.words(ids), 0.5))
        return result


def begin() -> TrainingState:
    torch.manual_seed(0)
    return start_training(Tied(), 1e-2, half=False, fused=False, device=CPU)


def take_step(state: TrainingState) -> float:
    loss = state.model(torch.arange(10)).square().mean()
    loss = loss + torch.rand((), generator=state.masking) * 0
    loss.backward()
    state.optimizer.step()
    state.optimizer.zero_grad()
    state.step += 1
    return float(loss.detach())


def save(output: Path, state: TrainingState) -> Path:
    return checkpoint.save(output, state, RECIPE, [read_random_states(state)])


def load(path: Path, state: TrainingState) -> None:
    folder = checkpoint.find(path)
    content = checkpoint.read_state(folder)
    checkpoint.require_recipe(folder, content["recipe"], RECIPE)
    checkpoint.load_model(folder, state.model)
    checkpoint.load_training(folder, content, state, rank=0)


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    state = begin()
    take_step(state)
    save(tmp_path / "run", state)
    return tmp_path / "run"


def reseal(folder: Path) -> None:
    """Make the checksums fit again, as an attacker or a careless editor would."""
    content = json.loads((folder / "state.json").read_text())
    for name in content["sha256"]:
        content["sha256"][name] = hashlib.sha256((folder / name).read_bytes()).hexdigest()
    (folder / "state.json").write_text(json.dumps(content))


def test_a_loaded_run_goes_on_as_the_saved_one(tmp_path: Path) -> None:
    first = begin()
    take_step(first)
    first.skipped_steps = 7
    save(tmp_path, first)
    expected = [take_step(first) for _ in range(3)]

    second = begin()
    torch.manual_seed(99)
    load(tmp_path, second)
    assert (second.step, second.skipped_steps) == (1, 7)
    assert [take_step(second) for _ in range(3)] == expected
    assert torch.equal(
        torch.rand(3, generator=second.masking), torch.rand(3, generator=first.masking)
    )
    for one, other in zip(first.model.parameters(), second.model.parameters(), strict=True):
        assert torch.equal(one, other)


def test_tied_tensors_are_kept_once(saved: Path) -> None:
    kept = load_file(saved / "step-1" / "model.safetensors")
    assert sorted(kept) == ["bias", "places", "words.weight"]


def test_saving_again_replaces_and_a_failed_save_keeps_the_old_one(
    saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fill_the_disk(path: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    state = begin()
    take_step(state)
    state.skipped_steps = 5
    save(saved, state)
    state.skipped_steps = 6
    monkeypatch.setattr("diagnose.records.files.flush", fill_the_disk)
    with pytest.raises(OSError, match="No space left"):
        save(saved, state)
    assert sorted(path.name for path in saved.iterdir()) == ["latest", "step-1"]
    assert checkpoint.read_state(saved / "step-1")["skipped_steps"] == 5


MODEL, TRAINING, STATE = "model.safetensors", "training.safetensors", "state.json"


def shorten(name: str, share: float) -> Callable[[Path], object]:
    return lambda folder: os.truncate(folder / name, int((folder / name).stat().st_size * share))


def add(name: str, tensor: str, width: int) -> Callable[[Path], object]:
    def change(folder: Path) -> None:
        tensors = load_file(folder / name)
        save_file({**tensors, tensor: torch.zeros(width)}, folder / name)

    return change


@pytest.mark.parametrize("sealed", [False, True])
@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        *((shorten(name, share), "truncated") for name in (MODEL, TRAINING) for share in (0, 0.5)),
        (shorten(MODEL, 0.999), "truncated"),
        (add(MODEL, "stranger", 1), "of another model: stranger"),
        (add(MODEL, "bias", 3), r"bias is \(3,\) there and \(10,\) here"),
        (add(TRAINING, "optimizer.stranger.step", 1), "another shape"),
        (add(TRAINING, "optimizer.bias.exp_avg", 3), "another shape at bias"),
        (add(TRAINING, "random.0.cpu", 3), "lacks the random state"),
    ],
)
def test_tensors_of_others_are_refused_and_change_nothing(
    saved: Path, change: Callable[[Path], object], complaint: str, sealed: bool
) -> None:
    """Whether or not the checksums fit."""
    change(saved / "step-1")
    if sealed:
        reseal(saved / "step-1")
    state = begin()
    before = {name: each.clone() for name, each in state.model.state_dict().items()}
    with pytest.raises(WorkloadError, match=complaint if sealed else "truncated or changed"):
        load(saved, state)
    if "another model" in complaint or "there and" in complaint:
        for name, each in state.model.state_dict().items():
            assert torch.equal(each, before[name])


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b"null", b'{"format": 1}', b"\xff\xfe", b"[" * 100_000, b" " * (2 << 20)],
    ids=["empty", "cut", "list", "null", "keys", "bytes", "deep", "long"],
)
def test_a_damaged_state_is_refused(saved: Path, content: bytes) -> None:
    (saved / "step-1" / STATE).write_bytes(content)
    with pytest.raises(WorkloadError, match=r"damaged state\.json"):
        load(saved, begin())


def test_a_newer_format_is_refused(saved: Path) -> None:
    path = saved / "step-1" / STATE
    path.write_text(path.read_text().replace('"format": 1', '"format": 2'))
    with pytest.raises(WorkloadError, match="has format 2, this program reads 1"):
        load(saved, begin())


@pytest.mark.parametrize("pointer", ["../../elsewhere", "step-", "", "step-9"])
def test_a_pointer_cannot_lead_elsewhere(saved: Path, pointer: str) -> None:
    (saved / "latest").write_text(pointer)
    with pytest.raises(WorkloadError, match=r"names no checkpoint|there is no checkpoint"):
        checkpoint.find(saved)


def test_a_pickle_is_refused_and_not_executed(saved: Path, tmp_path: Path) -> None:
    sentinel = tmp_path / "executed"
    attack = pickle.dumps(Attack(sentinel))
    pickle.loads(attack)
    assert sentinel.exists(), "the attack works where pickles are loaded"
    sentinel.unlink()

    for name in ("model.pt", "model.bin", "model.safetensors"):
        (tmp_path / name).write_bytes(attack)
        with pytest.raises(WorkloadError, match="are never loaded"):
            load(tmp_path / name, begin())

    disguised = saved / "step-1"
    (disguised / "model.safetensors").write_bytes(attack)
    reseal(disguised)
    with pytest.raises(WorkloadError, match="no safetensors file"):
        load(saved, begin())

    shutil.move(disguised / "model.safetensors", disguised / "pytorch_model.bin")
    with pytest.raises(WorkloadError, match=r"lacks model\.safetensors.*never loaded"):
        load(saved, begin())
    assert not sentinel.exists()
