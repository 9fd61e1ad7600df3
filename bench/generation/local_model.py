"""Can a model on disk be used? Its configuration, safetensors and tokenizer; nothing is run."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import nn

from bench.generation.language import TokenizerLanguage
from diagnose.measure.evaluation.directory import read_config
from diagnose.measure.machine.out_of_memory import is_out_of_memory
from diagnose.workload import WorkloadError

# Without any of these transformers makes a tokenizer that knows no word, and says nothing.
TOKENIZERS = ("tokenizer.json", "vocab.json", "vocab.txt", "tokenizer.model")

Loaded = TypeVar("Loaded")


def load_model(directory: Path, auto_class: str, dtype: torch.dtype) -> nn.Module:
    """The weights in the class that `transformers.<auto_class>` finds for them; all of them."""
    import transformers

    read_config(directory)
    _silence()
    auto = getattr(transformers, auto_class)
    model, report = guarded(
        directory,
        lambda: auto.from_pretrained(
            directory,
            local_files_only=True,
            trust_remote_code=False,
            use_safetensors=True,
            dtype=dtype,
            output_loading_info=True,
        ),
    )
    # transformers fills such gaps with random numbers and only warns.
    missing = sorted(report["missing_keys"])
    if missing:
        raise WorkloadError(
            f"the weights in {directory} are incomplete: {len(missing)} tensors are missing, "
            f"the first is {missing[0]}"
        )
    loaded: nn.Module = model
    return loaded


def load_language(directory: Path) -> TokenizerLanguage:
    from transformers import AutoTokenizer

    config = read_config(directory)
    if not any((directory / name).exists() for name in TOKENIZERS):
        raise WorkloadError(
            f"model directory {directory} has no tokenizer: none of {', '.join(TOKENIZERS)}"
        )
    _silence()
    tokenizer = guarded(
        directory,
        lambda: AutoTokenizer.from_pretrained(
            directory, local_files_only=True, trust_remote_code=False
        ),
    )
    text = config.get("text_config", config)
    known = text.get("vocab_size")
    if isinstance(known, int) and len(tokenizer) > known + text.get("additional_vocab_size", 0):
        raise WorkloadError(
            f"the tokenizer in {directory} has {len(tokenizer)} tokens and its model knows {known}"
        )
    return TokenizerLanguage(
        tokenizer, _find_ends(directory, config, tokenizer), config.get("image_token_id")
    )


def _find_ends(directory: Path, config: dict[str, Any], tokenizer: Any) -> tuple[int, ...]:
    """What the checkpoint itself says, the most specific place first."""
    path = directory / "generation_config.json"
    generation = guarded(directory, lambda: json.loads(path.read_text())) if path.exists() else {}
    for found in (
        generation.get("eos_token_id"),
        config.get("eos_token_id"),
        config.get("text_config", {}).get("eos_token_id"),
        tokenizer.eos_token_id,
    ):
        if found is not None:
            return tuple(found) if isinstance(found, list) else (int(found),)
    raise WorkloadError(f"the model in {directory} has no end mark (eos_token_id)")


def guarded(directory: Path, load: Callable[[], Loaded]) -> Loaded:
    try:
        return load()
    # The directory is the user's: whatever is wrong in it is an answer for them. Memory is not.
    except Exception as error:
        if is_out_of_memory(error, torch.OutOfMemoryError):
            raise
        lines = str(error).strip().splitlines() or [""]
        raise WorkloadError(
            f"the model in {directory} cannot be loaded: {type(error).__name__}: {lines[0]}"
        ) from error


def _silence() -> None:
    """Bars and advice of the library would stand between our own lines."""
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
