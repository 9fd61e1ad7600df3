"""Models on disk as their users have them: configuration, safetensors, a tokenizer."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from bench.textgen.workload import FAMILY as TEXTGEN
from bench.vqa import molmo
from bench.vqa.molmo_workload import FAMILY as MOLMO
from bench.vqa.questions import WORDS
from bench.vqa.workload import FAMILY as VQA

# What the tokenizer is trained on.
TEXT = "what is this who are you a an the cat dog one two red blue yes no of in picture"
MARKS = ["<pad>", "<unk>", "</s>", "<IMG_CONTEXT>"]
PAD, UNKNOWN, END, IMAGE = range(len(MARKS))
# The user's turn, and the place where the model begins.
CHAT = (
    "{% for each in messages %}{{ each['content'] }} {% endfor %}"
    "{% if add_generation_prompt %}? {% endif %}"
)


def write_text_model(directory: Path, *, chat: bool = False) -> Path:
    tokenizer = make_tokenizer(chat=chat)
    shape = {**TEXTGEN.sizes["tiny"].shape, "vocab": len(tokenizer)}
    _save(TEXTGEN, shape, tokenizer, directory)
    return directory


def write_molmo_model(directory: Path) -> Path:
    """With everything but remote code, as the published checkpoints."""
    tokenizer = make_tokenizer(marks=molmo.MARKS)
    shape = {**MOLMO.sizes["tiny"].shape, "vocab": len(tokenizer) + len(WORDS)}
    marks = tokenizer.convert_tokens_to_ids(list(molmo.MARKS))
    named = ("image_start_token_id", "image_end_token_id", "image_patch_id", "")
    ids = {name: mark for name, mark in zip(named, marks, strict=False) if name}
    _save(MOLMO, shape, tokenizer, directory, **ids)
    side = {"height": shape["image"], "width": shape["image"]}
    molmo.processor_class()(
        size=side, patch_size=shape["patch"], overlap_margins=[shape["margin"]] * 2
    ).save_pretrained(directory)
    path = directory / "processor_config.json"
    known = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({**known, "use_single_crop_col_tokens": False}))
    return directory


def write_vision_model(directory: Path) -> Path:
    from transformers import GotOcr2ImageProcessorPil

    tokenizer = make_tokenizer()
    shape = {**VQA.sizes["tiny"].shape, "vocab": len(tokenizer) + len(WORDS)}
    _save(VQA, shape, tokenizer, directory, image_token_id=IMAGE)
    side = shape["image"]
    GotOcr2ImageProcessorPil(size={"height": side, "width": side}).save_pretrained(directory)
    return directory


def widen(model: Path, rows: int) -> Path:
    """So large a vocabulary that the weights do not fit; on disk they are a hole, and cost none."""
    path, config = model / "model.safetensors", model / "config.json"
    with path.open("rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    end = 0
    for name, tensor in header.items():
        if name != "__metadata__":
            if "embed_tokens" in name or "lm_head" in name:
                tensor["shape"][0] = rows
            nbytes = 4 * math.prod(tensor["shape"])
            tensor["data_offsets"], end = [end, end + nbytes], end + nbytes
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text)
    os.truncate(path, path.stat().st_size + end)
    config.write_text(json.dumps({**json.loads(config.read_text()), "vocab_size": rows}))
    return model


def _save(
    family: Any, shape: dict[str, int], tokenizer: Any, directory: Path, **config: int
) -> None:
    model: Any = family.open_generator(shape, torch.device("cpu")).model
    for name, value in {"eos_token_id": END, **config}.items():
        setattr(model.config, name, value)
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)


def make_tokenizer(*, chat: bool = False, marks: Sequence[str] = ()) -> Any:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=320,
        special_tokens=[*MARKS, *marks],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    made.train_from_iterator([TEXT], trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=made, pad_token="<pad>", unk_token="<unk>", eos_token="</s>",
        additional_special_tokens=["<IMG_CONTEXT>", *marks],
    )  # fmt: skip
    if chat:
        tokenizer.chat_template = CHAT
    return tokenizer
