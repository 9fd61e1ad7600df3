"""How does a run go on as if it had never stopped? From a folder of safetensors and JSON.

  OUTPUT/latest                       the name of the newest folder
  OUTPUT/step-N/model.safetensors     parameters and buffers; a tied tensor is kept once
  OUTPUT/step-N/training.safetensors  moments of the optimiser, random states of every process
  OUTPUT/step-N/state.json            the step, the counts, the recipe, the checksums of the others

No pickle is ever written or read: a checkpoint from a stranger can be wrong but cannot run code.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from bench.dgca.state import TrainingState, restore_random_states
from diagnose.records.files import new_folder, write_file
from diagnose.workload import WorkloadError

FORMAT = 1
MODEL, TRAINING, STATE, LATEST = "model.safetensors", "training.safetensors", "state.json", "latest"
_STATE_BYTES_MOST = 1 << 20  # ours have a few kilobytes; more is not ours

Recipe = Mapping[str, Any]  # plain JSON: everything that decides how training goes on


def save(
    output: Path,
    state: TrainingState,
    recipe: Recipe,
    random_states: Sequence[Mapping[str, Tensor]],
) -> Path:
    """Write OUTPUT/step-N whole or not at all, then point `latest` to it."""
    folder = output / f"step-{state.step}"
    training = _name_optimizer_tensors(state)
    for rank, states in enumerate(random_states):
        training |= {f"random.{rank}.{kind}": tensor for kind, tensor in states.items()}
    with new_folder(folder) as part:
        save_file(_on_host(list_tensors(state.model)), part / MODEL)
        save_file(_on_host(training), part / TRAINING)
        content = {
            "format": FORMAT,
            "step": state.step,
            "nonfinite_losses": state.nonfinite_losses,
            "skipped_steps": state.skipped_steps,
            "scaler": state.scaler.state_dict(),
            "recipe": recipe,
            "sha256": {name: _digest(part / name) for name in (MODEL, TRAINING)},
        }
        (part / STATE).write_text(json.dumps(content, indent=1, allow_nan=False) + "\n", "utf-8")
    write_file(output / LATEST, lambda path: path.write_text(folder.name + "\n", "utf-8"))
    return folder


def find(path: Path) -> Path:
    """The checkpoint folder that is meant: the path itself, or the latest one inside it."""
    if path.is_file():
        raise WorkloadError(
            f"{path.name} is a file, but a checkpoint is a folder step-N with {MODEL}; "
            "pickled files (.pt, .bin) can run code and are never loaded"
        )
    pointer = path / LATEST
    if pointer.is_file():
        name = pointer.read_text("utf-8", errors="replace").strip()
        if not name.removeprefix("step-").isdecimal():
            raise WorkloadError(
                f"the file {LATEST} in {path} names no checkpoint; name one yourself"
            )
        path = path / name
    if not path.is_dir():
        raise WorkloadError(f"there is no checkpoint in {path}; start without --resume")
    missing = [name for name in (MODEL, TRAINING, STATE) if not (path / name).is_file()]
    if missing:
        raise WorkloadError(
            f"checkpoint {path.name} lacks {', '.join(missing)}; use another one "
            "(pickled files are never loaded)"
        )
    return path


def read_state(folder: Path) -> dict[str, Any]:
    """The JSON half, once the checksums of the other half have been compared."""
    file = folder / STATE
    try:
        if file.stat().st_size > _STATE_BYTES_MOST:
            raise ValueError("too long")
        content = json.loads(file.read_text("utf-8"))
        if content["format"] != FORMAT:
            raise WorkloadError(
                f"checkpoint {folder.name} has format {content['format']}, this program reads "
                f"{FORMAT}; resume it with the program that wrote it"
            )
        sums = {name: str(content["sha256"][name]) for name in (MODEL, TRAINING)}
        counts = [content[name] for name in ("step", "nonfinite_losses", "skipped_steps")]
        whole = all(type(each) is int and each >= 0 for each in counts)
        if not (
            whole and isinstance(content["recipe"], dict) and isinstance(content["scaler"], dict)
        ):
            raise ValueError("wrong kinds")
    except (ValueError, KeyError, TypeError, RecursionError):
        raise WorkloadError(
            f"checkpoint {folder.name} has a damaged {STATE}; use another"
        ) from None
    for name, expected in sums.items():
        if _digest(folder / name) != expected:
            raise WorkloadError(
                f"checkpoint {folder.name} has a truncated or changed {name}; use another one"
            )
    return dict(content)


def require_recipe(folder: Path, saved: Recipe, wanted: Recipe) -> None:
    """Refuse to go on in another way than before: nothing would say that the result is mixed."""
    for name in wanted:
        if saved.get(name) != wanted[name]:
            raise WorkloadError(
                f"checkpoint {folder.name} was trained with {name} {saved.get(name)}, "
                f"this run has {wanted[name]}; give the same options, or start without --resume"
            )


def load_model(folder: Path, model: nn.Module) -> None:
    """Fill the model from the folder; names and shapes must be exactly its own."""
    copy_tensors(folder / MODEL, list_tensors(model))


def load_training(
    folder: Path, content: Mapping[str, Any], state: TrainingState, rank: int
) -> None:
    """Everything but the model: the optimiser, the scaler, the random states, the counts."""
    tensors = _read(folder / TRAINING)
    names = _name_trained(state)
    restored: dict[int, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        if name.startswith("optimizer."):
            parameter, _, key = name.removeprefix("optimizer.").rpartition(".")
            index = next((place for place, each in enumerate(names) if each == parameter), None)
            if index is None or (key != "step" and tensor.shape != names[parameter].shape):
                raise WorkloadError(f"checkpoint {folder.name} is of another shape at {parameter}")
            restored.setdefault(index, {})[key] = tensor
    groups = state.optimizer.state_dict()["param_groups"]
    state.optimizer.load_state_dict({"state": restored, "param_groups": groups})
    if state.scaler.is_enabled():
        state.scaler.load_state_dict(dict(content["scaler"]))
    prefix = f"random.{rank}."
    states = {
        name.removeprefix(prefix): each for name, each in tensors.items() if name.startswith(prefix)
    }
    try:
        restore_random_states(state, states)
    except (KeyError, RuntimeError, TypeError):
        raise WorkloadError(
            f"checkpoint {folder.name} lacks the random state of {prefix[:-1]}"
        ) from None
    state.step = int(content["step"])
    state.nonfinite_losses = int(content["nonfinite_losses"])
    state.skipped_steps = int(content["skipped_steps"])


def list_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Every tensor of the model once: safetensors keeps no ties, and the model knows its own."""
    found: dict[str, Tensor] = {}
    seen = set()
    for name, tensor in model.state_dict().items():
        place = (tensor.data_ptr(), tensor.shape)
        if place not in seen:
            seen.add(place)
            found[name] = tensor
    return found


def digest_model(model: nn.Module) -> str:
    digest = hashlib.sha256()
    for tensor in _on_host(list_tensors(model)).values():
        digest.update(tensor.numpy().tobytes())
    return digest.hexdigest()


def copy_tensors(path: Path, into: Mapping[str, Tensor]) -> None:
    saved = _read(path)
    differing = sorted(saved.keys() ^ into.keys())
    if differing:
        raise WorkloadError(
            f"{path.name} is of another model: {differing[0]} is only in one of them"
        )
    for name, tensor in into.items():
        if saved[name].shape != tensor.shape:
            raise WorkloadError(
                f"{path.name} is of another shape: {name} is {tuple(saved[name].shape)} there "
                f"and {tuple(tensor.shape)} here"
            )
    with torch.no_grad():
        for name, tensor in into.items():
            tensor.copy_(saved[name])


def _read(path: Path) -> dict[str, Tensor]:
    try:
        tensors: dict[str, Tensor] = load_file(path)
    except (SafetensorError, OSError, ValueError):
        raise WorkloadError(
            f"{path.name} is truncated or no safetensors file; use another"
        ) from None
    return tensors


def _name_trained(state: TrainingState) -> dict[str, Tensor]:
    """The trained parameters by name, in the order in which the optimiser counts them."""
    return {name: each for name, each in state.model.named_parameters() if each.requires_grad}


def _name_optimizer_tensors(state: TrainingState) -> dict[str, Tensor]:
    return {
        f"optimizer.{name}.{key}": value
        for name, parameter in _name_trained(state).items()
        for key, value in state.optimizer.state.get(parameter, {}).items()
    }


def _on_host(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: each.detach().cpu().contiguous() for name, each in tensors.items()}


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
