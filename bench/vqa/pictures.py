"""How does a model look at a picture? In tiles and an overview; max_crops is only their cap.

The picture is cut into the grid whose format is nearest to its own, so a 4:3 photograph has the
same tiles under the caps 12 and 13.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from diagnose.workload import WorkloadError

# Most photographs are 4:3; the size in pixels decides nothing once there are more than a tile's.
PHOTOGRAPH = (768, 1024)


class TiledPictures:
    """By Pillow: torchvision, which the usual processors need, is not installed."""

    def __init__(self, processor: Any, tokens_per_tile: int, max_crops: int) -> None:
        self._processor = processor
        self.tokens_per_tile = tokens_per_tile
        self._max_crops = max_crops

    def tile(self, image: Path, max_crops: int | None) -> Tensor:
        from PIL import Image

        try:
            with Image.open(image) as opened:
                picture = opened.convert("RGB")
        # A damaged file fails in any of these ways, depending on where the damage is.
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
            raise WorkloadError(f"picture {image.name} cannot be read: {error}") from error
        return self._cut(picture, max_crops)

    def make_tiles(self, max_crops: int | None, generator: torch.Generator) -> Tensor:
        from PIL import Image

        pixels = torch.randint(256, (*PHOTOGRAPH, 3), generator=generator, dtype=torch.uint8)
        return self._cut(Image.fromarray(pixels.numpy()), max_crops)

    def _cut(self, picture: Any, max_crops: int | None) -> Tensor:
        most = self._max_crops if max_crops is None else max_crops
        cut = self._processor(picture, crop_to_patches=True, max_patches=most, return_tensors="pt")
        tiles: Tensor = cut["pixel_values"]
        return tiles
