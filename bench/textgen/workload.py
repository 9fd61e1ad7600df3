"""What does it cost to evaluate a language model? Qwen2 that corrects real sentences."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from bench.data import tensors, text, vocabulary
from bench.generation.job import (
    QWEN_HALF_BILLION,
    TINY_LANGUAGE,
    Family,
    Shape,
    make_workload,
)
from bench.generation.language import CharacterLanguage
from bench.generation.local_model import load_language, load_model
from bench.generation.questions import read_questions
from bench.generation.reader import Reader
from diagnose.measure.evaluation.directory import read_config
from diagnose.workload import Question, Size

TASK = "Correct this sentence: "


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


def open_questions(data: Path | None, count: int) -> list[Question]:
    """The first questions of the file, or sentences with errors whose answer is the right one."""
    if data is not None:
        return read_questions(data)[:count]
    corpus = text.read_package()
    pairs = tensors.make_pairs(corpus, min(count, len(corpus)))
    return [
        Question(str(place), TASK + wrong, (right,)) for place, (wrong, right) in enumerate(pairs)
    ]


SIZES = {
    # Qwen2.5-0.5B, which the report about batched evaluation began with, at its batch size.
    "seed": Size(
        batch_size=4,
        sequence_length=64,
        shape=QWEN_HALF_BILLION | {"vocab": 151936, "tied": 1, "rows": 1024, "new_tokens": 16},
    ),
    # A tenth of a second for 16 tokens on two CPU cores: most of it is spent once per layer and
    # token, and with two layers the whole catalogue is tried in less than five minutes.
    "small": Size(
        batch_size=4,
        sequence_length=64,
        shape={"layers": 2, "hidden": 256, "heads": 4, "kv_heads": 2, "ffn": 688}
        | {"vocab": vocabulary.SIZE, "tied": 0, "rows": 256, "new_tokens": 16},
    ),
    # For tests.
    "tiny": Size(
        batch_size=2,
        sequence_length=32,
        shape=TINY_LANGUAGE
        | {"vocab": vocabulary.COMMON_SIZE, "tied": 0, "rows": 32, "new_tokens": 8},
    ),
}

FAMILY = Family(
    name="textgen",
    description="spelling errors in sentences of an installed package, to be corrected",
    sizes=SIZES,
    build_model=build_model,
    open_reader=open_reader,
    open_questions=open_questions,
)

WORKLOAD = make_workload(FAMILY)
