"""Who writes the text? A Qwen2 model, of random weights or from a directory."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from bench.data import vocabulary
from bench.generation.job import Shape
from bench.generation.language import CharacterLanguage
from bench.generation.local_model import load_language, load_model
from bench.generation.reader import Reader
from diagnose.measure.evaluation.directory import read_config


def build_model(shape: Shape, directory: Path | None, dtype: torch.dtype) -> nn.Module:
    if directory is not None:
        return load_model(directory, "AutoModelForCausalLM", dtype)
    # Imported here: transformers takes seconds to import, and most commands never build a model.
    from transformers import Qwen2ForCausalLM

    model: nn.Module = Qwen2ForCausalLM(make_config(shape))
    return model


def make_config(shape: Shape) -> object:
    from transformers import Qwen2Config

    return Qwen2Config(
        vocab_size=shape["vocab"],
        hidden_size=shape["hidden"],
        num_hidden_layers=shape["layers"],
        num_attention_heads=shape["heads"],
        num_key_value_heads=shape["kv_heads"],
        intermediate_size=shape["ffn"],
        tie_word_embeddings=bool(shape["tied"]),
    )


def open_reader(shape: Shape, directory: Path | None) -> Reader:
    if directory is not None:
        positions = read_config(directory).get("max_position_embeddings")
        return Reader(load_language(directory), most_tokens=positions)
    # Larger vocabularies cost what they cost, but only so many ids have a meaning.
    language = CharacterLanguage(min(shape["vocab"], vocabulary.SIZE))
    return Reader(language, ends_like_reference=True)
