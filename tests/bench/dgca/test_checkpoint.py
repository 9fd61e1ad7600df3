from __future__ import annotations

import errno
import hashlib
import json
import pickle
import shutil
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

    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.words = nn.Embedding(10, width)
        self.decoder = nn.Linear(width, 10)
        self.decoder.weight = self.words.weight
        self.bias = self.decoder.bias
        self.register_buffer("places", torch.arange(3))

    def forward(self, ids: Tensor) -> Tensor:
        result: Tensor = self.decoder(nn.functional.dropout(self.words(ids), 0.5))
        return result


def begin(width: int = 4) -> TrainingState:
    torch.manual_seed(0)
    return start_training(Tied(width), 1e-2, half=False, fused=False, device=CPU)


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


def test_tied_tensors_are_kept_once_and_stay_tied(saved: Path) -> None:
    assert sorted(load_file(saved / "step-1" / "model.safetensors")) == [
        "bias",
        "places",
        "words.weight",
    ]
    state = begin()
    load(saved, state)
    assert isinstance(state.model, Tied)
    assert state.model.decoder.weight is state.model.words.weight


def test_a_checkpoint_is_found_by_its_run_or_by_itself(saved: Path) -> None:
    state = begin()
    load(saved, state)
    take_step(state)
    save(saved, state)
    assert checkpoint.find(saved).name == "step-2"
    assert checkpoint.find(saved / "step-1").name == "step-1"


def test_saving_again_replaces_and_leaves_nothing_behind(saved: Path) -> None:
    state = begin()
    take_step(state)
    state.skipped_steps = 5
    save(saved, state)
    assert sorted(path.name for path in saved.iterdir()) == ["latest", "step-1"]
    assert checkpoint.read_state(saved / "step-1")["skipped_steps"] == 5


def test_a_failed_save_keeps_the_old_one(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fill_the_disk(path: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("diagnose.records.files.flush", fill_the_disk)
    state = begin()
    with pytest.raises(OSError, match="No space left"):
        save(saved, state)
    assert sorted(path.name for path in saved.iterdir()) == ["latest", "step-1"]
    monkeypatch.undo()
    load(saved, state)


@pytest.mark.parametrize("name", ["model.safetensors", "training.safetensors"])
@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 0.999])
@pytest.mark.parametrize("sealed", [False, True])
def test_a_truncated_file_is_refused(saved: Path, name: str, share: float, sealed: bool) -> None:
    path = saved / "step-1" / name
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * share)])
    if sealed:
        reseal(saved / "step-1")
    with pytest.raises(WorkloadError, match=f"{name} is truncated|truncated or changed {name}"):
        load(saved, begin())


def test_a_changed_byte_is_noticed(saved: Path) -> None:
    path = saved / "step-1" / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(WorkloadError, match="truncated or changed"):
        load(saved, begin())


def test_another_shape_is_refused_and_changes_nothing(saved: Path) -> None:
    state = begin(width=6)
    before = {name: each.clone() for name, each in state.model.state_dict().items()}
    with pytest.raises(WorkloadError, match=r"words.weight is \(10, 4\) there and \(10, 6\) here"):
        load(saved, state)
    for name, each in state.model.state_dict().items():
        assert torch.equal(each, before[name])


@pytest.mark.parametrize(
    ("name", "change", "complaint"),
    [
        ("model.safetensors", {"stranger": torch.zeros(1)}, "of another model: stranger"),
        ("training.safetensors", {"optimizer.stranger.step": torch.zeros(1)}, "another shape"),
        (
            "training.safetensors",
            {"optimizer.bias.exp_avg": torch.zeros(3)},
            "another shape at bias",
        ),
        ("training.safetensors", {"random.0.cpu": torch.zeros(3)}, "lacks the random state"),
    ],
)
def test_foreign_tensors_are_refused(
    saved: Path, name: str, change: dict[str, Tensor], complaint: str
) -> None:
    path = saved / "step-1" / name
    save_file(load_file(path) | change, path)
    reseal(saved / "step-1")
    with pytest.raises(WorkloadError, match=complaint):
        load(saved, begin())


def test_another_recipe_is_refused(saved: Path) -> None:
    saved_recipe = checkpoint.read_state(saved / "step-1")["recipe"]
    with pytest.raises(WorkloadError, match="was trained with layers 2, this run has 3"):
        checkpoint.require_recipe(saved / "step-1", saved_recipe, {"layers": 3})


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b"null", b'{"format": 1}', b"\xff\xfe", b"[" * 100_000, b" " * (2 << 20)],
    ids=["empty", "cut", "list", "null", "keys", "bytes", "deep", "long"],
)
def test_a_damaged_state_is_refused(saved: Path, content: bytes) -> None:
    (saved / "step-1" / "state.json").write_bytes(content)
    with pytest.raises(WorkloadError, match=r"damaged state\.json"):
        load(saved, begin())


def test_a_newer_format_is_refused(saved: Path) -> None:
    path = saved / "step-1" / "state.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"format": 2}))
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
