"""Which photographs are looked at? Four that installed packages ship, cut to usual formats.

The format decides into how many tiles a model cuts a picture, so one format alone would show one
workload only. Only files are read: no code of the packages runs.
"""

from __future__ import annotations

import hashlib
import importlib.util
import io
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bench.data.tensors import cache_folder, keep_file
from diagnose.workload import WorkloadError

if TYPE_CHECKING:
    from PIL.Image import Image

WHOLE = (0.0, 0.0, 1.0, 1.0)
QUALITY = 95  # Pillow's advice for the best; above it files only grow


@dataclass(frozen=True)
class View:
    """A photograph, or a part of it that still shows everything that is asked about."""

    photograph: str
    box: tuple[float, float, float, float]  # left, top, right, bottom as shares of it


@dataclass(frozen=True)
class Source:
    """The file of a photograph in an installed package."""

    module: str
    distribution: str  # what pip calls it
    path: str


PHOTOGRAPHS: Mapping[str, Source] = {
    "officer": Source("matplotlib", "matplotlib", "mpl-data/sample_data/grace_hopper.jpg"),
    "stairs": Source("pywt", "PyWavelets", "data/ascent.npz"),
    "photographer": Source("pywt", "PyWavelets", "data/camera.npz"),
    "fields": Source("pywt", "PyWavelets", "data/aero.npz"),
}
VIEWS: Mapping[str, View] = {
    "portrait": View("officer", WHOLE),
    "square": View("stairs", WHOLE),
    "wide": View("photographer", (0.0, 0.07, 1.0, 0.6325)),
    "tall": View("fields", (0.2, 0.0, 0.7625, 1.0)),
    "landscape": View("officer", (0.0, 0.0, 1.0, 0.64)),
}


def open_views() -> dict[str, Path]:
    """A file for each view, cut once and kept."""
    return {name: _keep(name, view) for name, view in VIEWS.items()}


def _keep(name: str, view: View) -> Path:
    source = find_photograph(view.photograph)
    content = source.read_bytes()
    key = hashlib.sha256(content + repr((view, QUALITY)).encode()).hexdigest()[:32]
    path = cache_folder() / f"{key}-{name}.jpg"
    if not path.exists():
        cut = io.BytesIO()
        # As photographs usually come; a loader reads them several times faster than PNG files.
        _cut(_read(source.suffix, content), view.box).save(cut, "jpeg", quality=QUALITY)
        keep_file(path, cut)
    return path


def find_photograph(name: str) -> Path:
    source = PHOTOGRAPHS[name]
    spec = importlib.util.find_spec(source.module)
    folders = spec.submodule_search_locations if spec is not None else None
    path = Path(folders[0]) / source.path if folders else Path(source.path)
    if not path.is_file():
        raise WorkloadError(
            f"the photograph '{name}' is missing; run `pip install --force-reinstall "
            f"{source.distribution}` or give questions of your own with --data"
        )
    return path


def _read(suffix: str, content: bytes) -> Image:
    """A picture file, or its pixels as an array."""
    from PIL import Image

    if suffix != ".npz":
        return Image.open(io.BytesIO(content))
    import numpy as np

    return Image.fromarray(np.load(io.BytesIO(content))["data"])


def _cut(picture: Image, box: tuple[float, float, float, float]) -> Image:
    left, top, right, bottom = box
    width, height = picture.size
    return picture.crop(
        (round(left * width), round(top * height), round(right * width), round(bottom * height))
    )
