"""What model and which questions are these? Read before anything large is loaded."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from diagnose.workload import Question, WorkloadError

CONFIG = "config.json"
PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")


def read_config(directory: Path) -> dict[str, Any]:
    """What the model is, before anything large is loaded; refuses what must not be loaded."""
    try:
        names = {path.name for path in directory.iterdir()}
        text = (directory / CONFIG).read_text("utf-8") if CONFIG in names else ""
    except FileNotFoundError:
        raise WorkloadError(f"model directory {directory} does not exist") from None
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "its config.json is not UTF-8"
        raise WorkloadError(f"model directory {directory} cannot be read: {reason}") from error
    if not text:
        raise WorkloadError(
            f"model directory {directory} has no {CONFIG}; it must hold {CONFIG}, "
            "*.safetensors and the files of a tokenizer"
        )
    _require_safetensors(directory)
    try:
        config = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise WorkloadError(f"{directory / CONFIG} is malformed JSON: {error}") from error
    if not isinstance(config, dict) or not isinstance(config.get("model_type"), str):
        raise WorkloadError(f"{directory / CONFIG} names no model_type")
    return config


def _require_safetensors(directory: Path) -> None:
    if any(directory.glob("*.safetensors")):
        return
    pickled = sorted(path.name for pattern in PICKLES for path in directory.glob(pattern))
    if pickled:
        raise WorkloadError(
            f"model directory {directory} has pickled weights ({pickled[0]}), which can run any "
            "code when they are loaded; save them as safetensors"
        )
    raise WorkloadError(f"model directory {directory} has no *.safetensors, so no weights")


def hash_questions(questions: list[Question]) -> str:
    found = hashlib.sha256()
    for each in questions:
        found.update(repr((each.key, each.prompt, each.references)).encode())
        if each.image is not None:
            found.update(each.image.read_bytes())
    return found.hexdigest()
