"""What is a job made of? The contract between this tool and whatever it measures.

A workload names its parts; the stages put them together one at a time. A job of your own is
a Python file with `WORKLOAD = Workload(...)`; bench/examples/my_job.py is one to start from.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn
    from torch.utils.data import Dataset

Batch = Any  # whatever your loss accepts: a tensor, or a tuple, list or dict of tensors


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


# --- A job that writes answers


@dataclass(frozen=True)
class Question:
    """One sample of an evaluation."""

    key: str
    prompt: str
    references: tuple[str, ...]  # every answer that counts as right
    image: Path | None = None


@dataclass(frozen=True)
class Encoded:
    """A question as tensors on the CPU, not yet padded."""

    input_ids: Tensor  # (length,)
    pixel_values: Tensor | None = None  # (tiles, ...)
    # Where random weights are made to end, because they never do so by themselves.
    answer_length: int | None = None
    # What else some models must know of the picture, by the name of the model's argument.
    about_picture: Mapping[str, Tensor] = field(default_factory=dict)

    @property
    def tiles(self) -> int:
        return 0 if self.pixel_values is None else len(self.pixel_values)


@dataclass(frozen=True)
class Decoding:
    """How answers are written: always greedily, because sampled runs cannot be compared."""

    max_new_tokens: int = 16
    # False: exactly max_new_tokens for everyone, whatever the model would rather say.
    natural_stop: bool = True
    use_cache: bool = True
    static_cache: bool = False


Tensors = Mapping[str, Any]  # by the name of the model's argument


class Generator(Protocol):
    """A model with all that stands between a question and its answer."""

    @property
    def model(self) -> nn.Module: ...

    def encode(self, question: Question, max_crops: int | None = None) -> Encoded: ...

    def collate(self, samples: Sequence[Encoded]) -> dict[str, Tensor]:
        """Padded on the left: the answer must follow the question at once."""
        ...

    def generate(self, batch: Tensors, decoding: Decoding) -> list[tuple[int, ...]]:
        """The new tokens of each sample, without padding and without the end mark."""
        ...

    def decode(self, tokens: Sequence[int]) -> str: ...


class OpenGenerator(Protocol):
    """How a workload's generator is made: random weights of a size, or a directory's own."""

    def __call__(
        self,
        shape: Mapping[str, int],
        device: torch.device,
        *,
        model_directory: Path | None = None,
        dtype: torch.dtype = ...,
        seed: int = 0,
    ) -> Generator: ...


@dataclass(frozen=True)
class Generation:
    """What a job that writes answers needs besides."""

    open_generator: OpenGenerator
    # The user's --data file, or None for the built-in ones; at most so many.
    open_questions: Callable[[Path | None, int], list[Question]]
    # A generator around a model that is already there, so that it need not be built twice.
    wrap: Callable[[torch.nn.Module, Size], Generator]


# --- What `optimize` tries

# What the data of an experiment are like. Real sentences differ in length and their
# candidates do not repeat; the other two show when a change is right only by chance.
Condition = Literal["real data", "constant lengths", "duplicate candidates"]
Fact = str | int | float | bool | None


@dataclass(frozen=True)
class Lab:
    """Where an optimization is tried: a device, a size, a seed, and real data."""

    device: torch.device
    size: Size
    seed: int
    data: Path | None = None
    condition: Condition = "real data"


def _nothing() -> None:
    pass


@dataclass(frozen=True)
class Trial:
    """One side, built and ready to be timed."""

    step: Callable[[], object]
    samples_per_step: int
    # What must stay as it was while the trial is timed; None for one that trains.
    parameters: Callable[[], list[torch.Tensor]] | None = None
    before_slot: Callable[[], object] = _nothing
    after_slot: Callable[[], object] = _nothing
    # Seconds that steps have waited for the next batch so far; None where no loader brings one.
    waited: Callable[[], float] | None = None
    # False: other processes do the work, so that the peak of this one says nothing.
    in_this_process: bool = True


OpenTrial = Callable[[Lab], AbstractContextManager[Trial]]


@dataclass(frozen=True)
class Side:
    """One way to do it."""

    text: str
    # From the lab's seed and data to named tensors that the other side must reproduce. Tensors
    # under names that start with "per sample" have one row per sample.
    outcome: Callable[[Lab], Mapping[str, torch.Tensor]]
    trials: Mapping[str, OpenTrial]  # by scope: "forward", "training step", "batch", ...
    condition: Condition = "real data"


@dataclass(frozen=True)
class Optimization:
    """An entry of the catalogue."""

    key: str
    title: str
    before: Side
    after: Side
    published: tuple[Side, ...] = ()  # as the original report printed it, where that differs
    # Largest |a - b| / (1 + |a|) that still counts as equal.
    tolerance: float = 0.0
    # False where the numbers are meant to change (precision); they are then shown, not proven.
    claims_equality: bool = True
    facts: Callable[[Lab], Mapping[str, Fact]] | None = None
    # Losses of both sides at equal numbers of samples, where the numerics may change.
    curves: Callable[[Lab], Mapping[str, tuple[float, ...]]] | None = None
    # Why it does not apply here, or "".
    obstacle: Callable[[Lab], str] = field(default=lambda lab: "")
    # What a bundle is made of, each against the same `before`: timed in the bundle's own blocks,
    # because only neighbours in time can be compared.
    parts: tuple[Optimization, ...] = ()


@dataclass(frozen=True)
class Ladder:
    """A job that is described by settings, so that changes can be put on top of each other."""

    scope: str  # what one step is: "epoch", "training step"
    base: Mapping[str, Fact]
    # By key of the optimization: the settings that it changes.
    patches: Mapping[str, Mapping[str, Fact]]
    open: Callable[[Mapping[str, Fact]], OpenTrial]


@dataclass(frozen=True)
class Treatment:
    """All that can be tried on a workload."""

    # In the order in which they are tried; the order is the author's argument.
    optimizations: tuple[Optimization, ...]
    # Whose operators are counted line by line, by name ("original", "optimised"): the patient
    # first. Empty: the workload's own training step, as it is.
    mapped: Mapping[str, OpenTrial] = field(default_factory=dict)
    # The workload's best step; its pace is held against that of the plain backbone.
    best: OpenTrial | None = None
    # Measured after the single changes, in the order of what each gained.
    ladder: Ladder | None = None
    # Each step is a whole epoch or pass, so that a quick run has time for few of them.
    long_steps: bool = False

    @property
    def parts(self) -> tuple[Optimization, ...]:
        """Of all bundles, each once; they can also be tried alone."""
        parts = (part for each in self.optimizations for part in each.parts)
        return tuple({part.key: part for part in parts}.values())

    def find(self, key: str) -> Optimization:
        known = (*self.optimizations, *self.parts)
        return next(each for each in known if each.key == key)


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
    # What an evaluation during training reads; without it the first rows of the data stand in.
    evaluation_rows: Callable[[Size, Path | None], Dataset[Any]] | None = None
    collate: Callable[[list[Any]], Batch] | None = None
    describe_data: Callable[[Size, Path | None], DataSummary] | None = None
    learning_rate: float = 5e-5
    # Gradients are clipped to this norm before every optimizer step; None: they are not.
    gradient_norm_most: float | None = None
    # What `optimize` tries: a function, so that listing
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
