"""Who looks and answers with overlapping crops? A Molmo2 model, of random weights or on disk.

The class is the one of transformers: nothing that comes with a checkpoint is run. `max_crops` is
the setting of its own processor.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bench.generation.job import Shape
from bench.generation.language import CharacterLanguage, TokenizerLanguage, Views
from bench.generation.local_model import guarded, load_language, load_model
from bench.generation.reader import ABOUT_PICTURE, PIXELS, Picture, Reader
from bench.vqa.generator import Pictures
from bench.vqa.questions import WORDS
from diagnose.measure.evaluation.directory import read_config
from diagnose.workload import WorkloadError

MODEL_TYPE = "molmo2"
# In the order of their ids behind the text's vocabulary, as in the published checkpoints.
MARKS = ("<im_start>", "<im_end>", "<im_patch>", "<im_col>", "<low_res_im_start>")
START, END, PATCH, COLUMN, LOW = MARKS
# Ids behind the vocabulary; the published checkpoints have as many.
ADDITIONAL = 128


@dataclass(frozen=True)
class Layout:
    """How a picture is written down; the names are those of the processor's configuration."""

    image_use_col_tokens: bool = True  # a mark ends each row of the crops
    use_single_crop_col_tokens: bool | None = None  # and of the overview; None: as above
    use_single_crop_start_token: bool = True  # the overview begins with a mark of its own

    def draw(self, views: Views) -> list[str]:
        """The overview, then all crops as one."""
        drawn: list[str] = []
        overview = self.use_single_crop_col_tokens
        for place, (rows, columns) in enumerate(views):
            ends = self.image_use_col_tokens if place or overview is None else overview
            row = [*[PATCH] * columns, *[COLUMN] * ends]
            start = LOW if not place and self.use_single_crop_start_token else START
            drawn += [start, *row * rows, END]
        return drawn


class MolmoCharacters(CharacterLanguage):
    """For random weights."""

    def __init__(self, vocabulary_size: int, words: Sequence[str]) -> None:
        super().__init__(vocabulary_size - len(words), words)
        self._marks = {mark: vocabulary_size + place for place, mark in enumerate(MARKS)}
        self.image_token = self._marks[PATCH]
        self.picture_marks = tuple(self._marks.values())

    def place(self, views: Views) -> list[int]:
        return [self._marks[mark] for mark in Layout().draw(views)]


class MolmoTokenizer(TokenizerLanguage):
    """Of a model on disk."""

    after_picture = ""

    def __init__(self, language: TokenizerLanguage, layout: Layout) -> None:
        super().__init__(
            language.tokenizer, language.ends, language.tokenizer.convert_tokens_to_ids(PATCH)
        )
        self._layout = layout
        self.picture_marks = tuple(language.tokenizer.convert_tokens_to_ids(list(MARKS)))

    def _draw(self, views: Views) -> str:
        return "".join(self._layout.draw(views))

    def encode_prompt(self, text: str, views: Views = ()) -> list[int]:
        """As the model's own processor begins it, also where the tokenizer has no such mark."""
        ids = super().encode_prompt(text, views)
        begin = self.tokenizer.bos_token_id
        begin = self.tokenizer.eos_token_id if begin is None else begin
        return ids if ids[:1] == [begin] else [begin, *ids]


class CroppedPictures(Pictures):
    """Cut by the processor of transformers."""

    def _cut(self, picture: Any, most: int) -> Picture:
        cut = self._processor(picture, max_crops=most, return_tensors="pt")
        low_rows, low_columns, rows, columns = cut["image_grids"][0].tolist()
        about = {name: cut[name] for name in ABOUT_PICTURE}
        return Picture(cut[PIXELS], ((low_rows, low_columns), (rows, columns)), about)


@lru_cache
def processor_class() -> Any:
    """The three things for which it asks torchvision, which is not installed, done by torch."""
    try:
        from transformers.models.molmo2.image_processing_molmo2 import Molmo2ImageProcessor
    except ImportError as error:
        raise WorkloadError(f"Molmo2 needs a newer transformers: {error}") from error

    class Processor(Molmo2ImageProcessor):  # type: ignore[misc]
        def process_image(self, image: Any, **_: object) -> Tensor:
            return torch.from_numpy(np.array(image.convert("RGB"))).permute(2, 0, 1).contiguous()

        def resize(self, image: Tensor, size: Any, *_: object, **__: object) -> Tensor:
            # Bilinear without smoothing is all that this processor asks for.
            ends = (size.height, size.width)
            return F.interpolate(image, ends, mode="bilinear", align_corners=False)

        def rescale_and_normalize(
            self,
            images: Tensor,
            do_rescale: bool,
            rescale_factor: float,
            do_normalize: bool,
            image_mean: Sequence[float],
            image_std: Sequence[float],
        ) -> Tensor:
            made = images.float() * (rescale_factor if do_rescale else 1.0)
            if not do_normalize:
                return made
            mean, std = (torch.tensor(each).view(-1, 1, 1) for each in (image_mean, image_std))
            return (made - mean) / std

    return Processor


def build_model(shape: Shape, directory: Path | None, dtype: torch.dtype) -> nn.Module:
    if directory is not None:
        return load_model(directory, "AutoModelForImageTextToText", dtype)
    try:
        from transformers import Molmo2Config, Molmo2ForConditionalGeneration
    except ImportError as error:
        raise WorkloadError(f"Molmo2 needs a newer transformers: {error}") from error
    seen = {
        "hidden_size": shape["vision_hidden"],
        "num_attention_heads": shape["vision_heads"],
        "num_key_value_heads": shape["vision_heads"],
        "head_dim": shape["vision_hidden"] // shape["vision_heads"],
    }
    layers, vocabulary_size = shape["vision_layers"], shape["vocab"]
    text = {
        "hidden_size": shape["hidden"],
        "num_hidden_layers": shape["layers"],
        "num_attention_heads": shape["heads"],
        "num_key_value_heads": shape["kv_heads"],
        "head_dim": shape["head_dim"],
        "intermediate_size": shape["ffn"],
        "vocab_size": vocabulary_size,
        "additional_vocab_size": ADDITIONAL,
    }
    model: nn.Module = Molmo2ForConditionalGeneration(
        Molmo2Config(
            vision_config={
                **seen,
                "num_hidden_layers": layers,
                "intermediate_size": shape["vision_ffn"],
                "image_size": [shape["image"]] * 2,
                "patch_size": shape["patch"],
            },
            adapter_config={
                **seen,
                # The last layer and one a quarter before it, as published.
                "vision_feature_layer": [layers - 1, layers * 3 // 4],
                "intermediate_size": shape["ffn"],
                "text_hidden_size": shape["hidden"],
            },
            text_config=text,
            image_start_token_id=vocabulary_size + MARKS.index(START),
            image_end_token_id=vocabulary_size + MARKS.index(END),
            image_patch_id=vocabulary_size + MARKS.index(PATCH),
            low_res_image_start_token_id=vocabulary_size + MARKS.index(LOW),
            tie_word_embeddings=bool(shape["tied"]),
        )
    )
    return model


def open_reader(shape: Shape, directory: Path | None) -> Reader:
    if directory is None:
        processor = processor_class()(
            size={"height": shape["image"], "width": shape["image"]},
            patch_size=shape["patch"],
            overlap_margins=[shape["margin"]] * 2,
        )
        language = MolmoCharacters(shape["vocab"], WORDS)
        pictures = CroppedPictures(processor, shape["max_crops"])
        return Reader(language, pictures, ends_like_reference=True)
    config = read_config(directory)
    processor = guarded(
        directory, lambda: processor_class().from_pretrained(directory, local_files_only=True)
    )
    known = load_language(directory)
    missing = [mark for mark in MARKS if mark not in known.tokenizer.get_vocab()]
    if missing:
        raise WorkloadError(f"the tokenizer in {directory} does not know {missing[0]}")
    positions = config.get("text_config", {}).get("max_position_embeddings")
    reads = MolmoTokenizer(known, _read_layout(directory))
    return Reader(reads, CroppedPictures(processor, shape["max_crops"]), positions)


def _read_layout(directory: Path) -> Layout:
    path = directory / "processor_config.json"
    found = guarded(directory, lambda: json.loads(path.read_text())) if path.exists() else {}
    names = [each.name for each in fields(Layout)]
    return Layout(**{name: found[name] for name in names if name in found})
