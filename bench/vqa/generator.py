"""Who looks and answers? An InternVL model, of random weights or from a directory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from bench.data import vocabulary
from bench.generation.job import Shape
from bench.generation.language import CharacterLanguage
from bench.generation.local_model import guarded, load_language, load_model
from bench.generation.reader import Picture, Reader
from bench.textgen.workload import make_config as make_text_config
from bench.vqa.questions import WORDS
from diagnose.measure.evaluation.directory import read_config
from diagnose.workload import WorkloadError

MODEL_TYPE = "internvl"
# Two by two patches become one token.
DOWNSAMPLING = 0.5
# Most photographs are 4:3; the size in pixels decides nothing once there are more than a tile's.
PHOTOGRAPH = (768, 1024)


class Pictures:
    """Files or noise, cut by a processor into at most so many pieces."""

    def __init__(self, processor: Any, max_crops: int) -> None:
        self._processor = processor
        self._max_crops = max_crops

    def tile(self, image: Path, max_crops: int | None) -> Picture:
        return self._cut(read_picture(image), self._max_crops if max_crops is None else max_crops)

    def make(self, max_crops: int | None, generator: torch.Generator) -> Picture:
        return self._cut(
            make_picture(generator), self._max_crops if max_crops is None else max_crops
        )

    def _cut(self, picture: Any, most: int) -> Picture:
        raise NotImplementedError


class TiledPictures(Pictures):
    """By Pillow: torchvision, which the usual processors need, is not installed."""

    def __init__(self, processor: Any, tokens_per_tile: int, max_crops: int) -> None:
        super().__init__(processor, max_crops)
        self._tokens_per_tile = tokens_per_tile

    def _cut(self, picture: Any, most: int) -> Picture:
        cut = self._processor(picture, crop_to_patches=True, max_patches=most, return_tensors="pt")
        tiles: Tensor = cut["pixel_values"]
        return Picture(tiles, ((len(tiles), self._tokens_per_tile),))


def read_picture(image: Path) -> Any:
    from PIL import Image

    try:
        with Image.open(image) as opened:
            return opened.convert("RGB")
    # A damaged file fails in any of these ways, depending on where the damage is.
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise WorkloadError(f"picture {image.name} cannot be read: {error}") from error


def make_picture(generator: torch.Generator) -> Any:
    from PIL import Image

    pixels = torch.randint(256, (*PHOTOGRAPH, 3), generator=generator, dtype=torch.uint8)
    return Image.fromarray(pixels.numpy())


def build_model(shape: Shape, directory: Path | None, dtype: torch.dtype) -> nn.Module:
    if directory is not None:
        return load_model(directory, "AutoModelForImageTextToText", dtype)
    # Imported here: transformers takes seconds to import, and most commands never build a model.
    from transformers import InternVLConfig, InternVLForConditionalGeneration, InternVLVisionConfig

    vision = InternVLVisionConfig(
        hidden_size=shape["vision_hidden"],
        num_hidden_layers=shape["vision_layers"],
        num_attention_heads=shape["vision_heads"],
        intermediate_size=shape["vision_ffn"],
        image_size=shape["image"],
        patch_size=shape["patch"],
    )
    config = InternVLConfig(
        vision_config=vision,
        text_config=make_text_config(shape),
        image_token_id=vocabulary.MASK,
        image_seq_length=count_tokens(shape),
        downsample_ratio=DOWNSAMPLING,
        tie_word_embeddings=bool(shape["tied"]),
    )
    model: nn.Module = InternVLForConditionalGeneration(config)
    return model


def count_tokens(shape: Shape) -> int:
    """Of one tile."""
    return int((shape["image"] // shape["patch"] * DOWNSAMPLING) ** 2)


def open_reader(shape: Shape, directory: Path | None) -> Reader:
    from transformers import GotOcr2ImageProcessorPil

    if directory is None:
        side = {"height": shape["image"], "width": shape["image"]}
        processor = GotOcr2ImageProcessorPil(size=side)
        pictures = TiledPictures(processor, count_tokens(shape), shape["max_crops"])
        language = CharacterLanguage(shape["vocab"] - len(WORDS), WORDS)
        return Reader(language, pictures, ends_like_reference=True)
    config = read_config(directory)
    processor = guarded(
        directory,
        lambda: GotOcr2ImageProcessorPil.from_pretrained(directory, local_files_only=True),
    )
    pictures = TiledPictures(processor, config["image_seq_length"], shape["max_crops"])
    positions = config.get("text_config", {}).get("max_position_embeddings")
    return Reader(load_language(directory), pictures, positions)
