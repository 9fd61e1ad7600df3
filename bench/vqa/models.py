"""Which model looks? The workload's own of random weights, or what a directory holds."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import torch
from torch import nn

from bench.generation.job import Shape
from bench.generation.reader import Reader
from bench.vqa import generator, molmo
from diagnose.measure.evaluation.directory import read_config
from diagnose.workload import WorkloadError

BY_TYPE = {each.MODEL_TYPE: each for each in (generator, molmo)}


@dataclass(frozen=True)
class Eyes:
    """What a workload about pictures looks with where no directory is named."""

    own: str

    def build_model(self, shape: Shape, directory: Path | None, dtype: torch.dtype) -> nn.Module:
        model: nn.Module = self._find(directory).build_model(shape, directory, dtype)
        return model

    def open_reader(self, shape: Shape, directory: Path | None) -> Reader:
        reader: Reader = self._find(directory).open_reader(shape, directory)
        return reader

    def _find(self, directory: Path | None) -> ModuleType:
        if directory is None:
            return BY_TYPE[self.own]
        found = read_config(directory)["model_type"]
        if found not in BY_TYPE:
            raise WorkloadError(
                f"the model in {directory} is a {found}; workloads about pictures take "
                f"{' and '.join(BY_TYPE)} models, textgen those that only read text"
            )
        return BY_TYPE[found]


def vision_shape(
    max_crops: int, image: int, layers: int, hidden: int, heads: int, ffn: int
) -> dict[str, int]:
    """The tower that looks: `image` pixels a side in patches of 14, at most so many tiles."""
    return {
        "max_crops": max_crops,
        "image": image,
        "patch": 14,
        "vision_layers": layers,
        "vision_hidden": hidden,
        "vision_heads": heads,
        "vision_ffn": ffn,
    }
