"""What is a job made of? The parts that let one ladder of stages measure any model.

A workload names its parts; the stages put them together one at a time. A job of your own is
a Python file with `WORKLOAD = Workload(...)`; bench/examples/my_job.py is one to start from.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from torch.utils.data import Dataset

    from bench.generation.contract import Generator, OpenGenerator, Question
    from bench.optimizations.contract import Treatment

Batch = Any  # whatever your loss accepts: a tensor, or a tuple, list or dict of tensors

# In the order in which --help lists them: from the pure encoder to the full model, then the
# patient that is too small for its device, and then those that write, without and with pictures.
BUILT_IN: Mapping[str, str] = {
    "bert": "bench.bert",
    "dgca": "bench.dgca.workload",
    "timeseries": "bench.timeseries.workload",
    "textgen": "bench.textgen.workload",
    "vqa": "bench.vqa.workload",
}


class WorkloadError(Exception):
    """The workload or its data cannot be used; the message says why and what to do."""


@dataclass(frozen=True)
class Size:
    """One scale of a job."""

    batch_size: int
    sequence_length: int | None = None
    shape: Mapping[str, int] = field(default_factory=dict)  # layers, hidden, rows: yours to name


@dataclass(frozen=True)
class Network:
    """Something that can be trained: how it is built, and how a batch becomes a loss."""

    build: Callable[[Size], torch.nn.Module]
    loss: Callable[[torch.nn.Module, Batch], torch.Tensor]
    # Inference, where it is less than the loss (no labels, no criterion); else the loss is run.
    forward: Callable[[torch.nn.Module, Batch], object] | None = None


@dataclass(frozen=True)
class Generation:
    """What a job that writes answers needs besides: see bench/generation/contract.py."""

    open_generator: OpenGenerator
    # The user's --data file, or None for the built-in ones; at most so many.
    open_questions: Callable[[Path | None, int], list[Question]]
    # A generator around a model that is already there, so that it need not be built twice.
    wrap: Callable[[torch.nn.Module, Size], Generator]


@dataclass(frozen=True)
class DataSummary:
    """What the real data are, for the report."""

    description: str
    sha256: str
    sentences: int
    rows: int
    erroneous_rows: int
    length_quantiles: Mapping[str, float]
    padding_share: float
    # What `sentences` counts, and what the lengths are counted in.
    unit: str = "sentences"
    length_unit: str = "characters"


@dataclass(frozen=True)
class Workload:
    """A job in parts. Only name, sizes, model and synthetic_batch are needed.

    Without `datasets` the loader stages are skipped; without `backbone` the model itself is
    what the early stages measure, and there is no separate full-model stage.
    """

    name: str
    sizes: Mapping[str, Size]
    model: Network
    synthetic_batch: Callable[[Size, torch.device], Batch]  # already on the device
    backbone: Network | None = None
    # Ways to hold the data, by name ("mmap", "preload", or just "dataset"): the loader stage
    # sweeps them. The path is the user's --data file, or None.
    datasets: Mapping[str, Callable[[Size, Path | None], Dataset[Any]]] = field(
        default_factory=dict
    )
    collate: Callable[[list[Any]], Batch] | None = None
    describe_data: Callable[[Size, Path | None], DataSummary] | None = None
    learning_rate: float = 5e-5
    # Gradients are clipped to this norm before every optimiser step; None: they are not.
    gradient_norm_most: float | None = None
    # What `optimize` tries: see bench/optimizations/contract.py. A function, so that listing
    # the workloads does not load it.
    treatment: Callable[[], Treatment] | None = None
    generation: Generation | None = None
    # The same job with the model of the user's --model directory.
    from_directory: Callable[[Path], Workload] | None = None
    default_size_on_cpu: str = "small"
    default_size_on_accelerator: str = "seed"

    def size(self, name: str | None, device_type: str) -> tuple[str, Size]:
        """The size asked for, else the one that suits the device, else the only one there is."""
        if name is None:
            name = (
                self.default_size_on_cpu
                if device_type == "cpu"
                else self.default_size_on_accelerator
            )
            if name not in self.sizes:
                name = next(iter(self.sizes))
        if name not in self.sizes:
            raise WorkloadError(
                f"workload {self.name} has no size '{name}'; it has {', '.join(self.sizes)}"
            )
        return name, self.sizes[name]


def load(name_or_path: str, model_directory: Path | None = None) -> Workload:
    """A built-in workload by name, or the WORKLOAD of the user's own Python file."""
    workload = _find(name_or_path)
    if model_directory is None:
        return workload
    if workload.from_directory is None:
        raise WorkloadError(
            f"workload {workload.name} builds its own model, so --model has no use; "
            "textgen and vqa take one"
        )
    return workload.from_directory(model_directory)


def _find(name_or_path: str) -> Workload:
    if name_or_path in BUILT_IN:
        workload = importlib.import_module(BUILT_IN[name_or_path]).WORKLOAD
        assert isinstance(workload, Workload)
        return workload
    path = Path(name_or_path)
    if path.suffix != ".py":
        raise WorkloadError(
            f"no workload '{name_or_path}'; use {', '.join(BUILT_IN)} or the path of a .py file"
        )
    if not path.is_file():
        raise WorkloadError(f"workload file {name_or_path} does not exist")
    try:
        module = _import(path.resolve())
    # The file is the user's: whatever it raises is an answer for them, not a fault of ours.
    # A script that parses arguments or trains at import time may also call sys.exit.
    except (Exception, SystemExit) as error:
        raise WorkloadError(
            f"workload file {name_or_path} cannot be imported: {type(error).__name__}: {error}"
        ) from error
    workload = getattr(module, "WORKLOAD", None)
    if not isinstance(workload, Workload):
        raise WorkloadError(
            f"workload file {name_or_path} defines no WORKLOAD = Workload(...); "
            "bench/examples/my_job.py shows one"
        )
    _check_sizes(workload, name_or_path)
    return workload


def source_sha256(name_or_path: str) -> str:
    """Of the user's file, so that an edited job is not taken for the same one; else empty."""
    if name_or_path in BUILT_IN:
        return ""
    return hashlib.sha256(Path(name_or_path).read_bytes()).hexdigest()


def _check_sizes(workload: Workload, name: str) -> None:
    if not workload.sizes:
        raise WorkloadError(f"workload {workload.name} in {name} has no sizes")
    for size_name, size in workload.sizes.items():
        for key, value in size.shape.items():
            if not isinstance(value, (int, float, str)):
                raise WorkloadError(
                    f"size '{size_name}' in {name}: shape['{key}'] is a {type(value).__name__}; "
                    "only numbers and text can be recorded"
                )


def _import(path: Path) -> ModuleType:
    """Run the file as a module that its neighbours and its own loader processes can find.

    Where loader processes are not forked (macOS, Windows, Python 3.14), they import the user's
    Dataset class by the name of its module; so the folder joins the search path, at the end,
    where it hides nothing, and the module keeps the file's name unless that is taken.
    """
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))
    found = importlib.util.find_spec(path.stem) if path.stem.isidentifier() else None
    ours = found is not None and Path(found.origin or "").resolve() == path
    name = path.stem if ours else f"workload_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module
