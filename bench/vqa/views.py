"""Which photographs are looked at? One that matplotlib ships, cut to the formats people use.

The format decides into how many tiles a model cuts a picture, so one format alone would show one
workload only.
"""

from __future__ import annotations

import hashlib
import importlib.util
import io
from collections.abc import Mapping
from pathlib import Path

from bench.data.tensors import cache_folder, keep_file
from bench.workload import WorkloadError

PHOTOGRAPH = "mpl-data/sample_data/grace_hopper.jpg"
# Left, top, right, bottom as shares of the photograph; all show her face, her hat and the flag.
VIEWS: Mapping[str, tuple[float, float, float, float]] = {
    "portrait": (0.0, 0.0, 1.0, 1.0),
    "landscape": (0.0, 0.0, 1.0, 0.64),
    "square": (0.0, 0.0, 1.0, 0.853),
    "wide": (0.0, 0.03, 1.0, 0.563),
    "tall": (0.15, 0.0, 0.74, 1.0),
}


def find_photograph() -> Path:
    spec = importlib.util.find_spec("matplotlib")
    folders = spec.submodule_search_locations if spec is not None else None
    path = Path(folders[0]) / PHOTOGRAPH if folders else Path(PHOTOGRAPH)
    if not path.is_file():
        raise WorkloadError(
            "the default photograph is missing; run `pip install --force-reinstall matplotlib` "
            "or give questions of your own with --data"
        )
    return path


def open_views() -> dict[str, Path]:
    """A file for each view, cut once and kept."""
    photograph = find_photograph()
    content = photograph.read_bytes()
    key = hashlib.sha256(content + repr(VIEWS).encode()).hexdigest()[:32]
    paths = {name: cache_folder() / f"{key}-{name}.png" for name in VIEWS}
    for name, path in paths.items():
        if not path.exists():
            keep_file(path, _cut(content, VIEWS[name]))
    return paths


def _cut(content: bytes, view: tuple[float, float, float, float]) -> io.BytesIO:
    from PIL import Image

    cut = io.BytesIO()
    with Image.open(io.BytesIO(content)) as picture:
        width, height = picture.size
        left, top, right, bottom = view
        box = (
            round(left * width),
            round(top * height),
            round(right * width),
            round(bottom * height),
        )
        picture.crop(box).save(cut, "png")
    return cut
