"""What is asked about a picture? Questions on four photographs, or those of a user's file.

questions.jsonl is written by hand, most answers of one word and a few longer, because lengths
decide how many tokens an evaluation writes. It is no sample of any data set: what share of the
answers fits into a limit says nothing about real answers; for that give a file of your own.

The photographs come with installed packages and are cut to usual formats, because the format
decides into how many tiles a model cuts a picture. Only files are read: no code of the packages
runs.
"""

from __future__ import annotations

import hashlib
import importlib.util
import io
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING

from bench.data.tensors import cache_folder, keep_file
from bench.generation.questions import read_questions
from diagnose.workload import Question, WorkloadError

if TYPE_CHECKING:
    from PIL.Image import Image

# In an order in which short and long answers, and so their costs, are spread.
ASKED = [
    json.loads(line)
    for line in Path(__file__).with_suffix(".jsonl").read_text(encoding="utf-8").splitlines()
]
WORDS = tuple(
    sorted(
        {
            word
            for asked in ASKED
            for text in (asked["question"], *asked["answers"])
            for word in re.findall(r"[a-z]+", text.lower())
        }
    )
)

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


def open_questions(data: Path | None, count: int) -> list[Question]:
    """The first questions of the file, or every question about every view of its photograph."""
    if data is not None:
        return read_questions(data)[:count]
    by_view = []
    for name, image in open_views().items():
        about = [each for each in ASKED if each["photograph"] == VIEWS[name].photograph]
        by_view.append(
            [
                Question(f"{name} {place}", each["question"], tuple(each["answers"]), image)
                for place, each in enumerate(about)
            ]
        )
    # The view changes with every question, so that a batch mixes formats as a data set does.
    made = [each for turn in zip_longest(*by_view) for each in turn if each is not None]
    return made[:count]


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
