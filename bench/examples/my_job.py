"""How do I measure my own job? Copy this file and replace its parts one by one.

    python -m diagnose run --workload bench/examples/my_job.py
    python -m diagnose optimize --workload bench/examples/my_job.py

The example is an image classifier: pictures of stripes, sorted by their direction. Every part
is an ordinary function that the suite calls; it never sees your training script. Neighbouring
modules can be imported as usual, so `from my_model import Net` works if my_model.py is beside
this file. Do not train or parse arguments at import time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import Dataset

from diagnose.workload import Lab, Network, Optimization, Side, Size, Treatment, Trial, Workload

CLASSES = 8
Images = tuple[Tensor, Tensor]  # pictures (batch, 3, pixels, pixels) and classes (batch,)

# 1. How large the job is. `shape` is yours: whatever your functions below want to know. Choose
#    "small" so that a training step takes tens of milliseconds; the first size is the default
#    where no other is asked for. sequence_length stays unset for anything that is not text.
SIZES = {
    "small": Size(batch_size=32, shape={"pixels": 32, "channels": 32, "rows": 2048}),
    "tiny": Size(batch_size=4, shape={"pixels": 8, "channels": 4, "rows": 32}),
}


# 2. The model, on the CPU and in training mode. The suite moves it to the device.
def build(size: Size) -> nn.Module:
    channels = size.shape["channels"]
    return nn.Sequential(
        nn.Conv2d(3, channels, kernel_size=3, padding=1),
        nn.BatchNorm2d(channels),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(channels, 2 * channels, kernel_size=3, padding=1),
        nn.BatchNorm2d(2 * channels),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(2 * channels, CLASSES),
    )


# 3. How a batch becomes a number to minimise. The suite runs the backward pass itself.
def loss(model: nn.Module, batch: Images) -> Tensor:
    pictures, classes = batch
    return F.cross_entropy(model(pictures), classes)


# 4. Inference, if it is less work than the loss. Leave it out of Network otherwise.
def forward(model: nn.Module, batch: Images) -> Tensor:
    pictures, _ = batch
    result: Tensor = model(pictures)
    return result


# 5. One batch that costs no loading at all, already on the device: the yardstick against which
#    your data loading is judged. Same shapes and types as a real batch; the values are free.
def synthetic_batch(size: Size, device: torch.device) -> Images:
    generator = torch.Generator().manual_seed(0)
    pixels = size.shape["pixels"]
    pictures = torch.rand(size.batch_size, 3, pixels, pixels, generator=generator)
    classes = torch.randint(CLASSES, (size.batch_size,), generator=generator)
    return pictures.to(device), classes.to(device)


# 6. Your real data. Do in __getitem__ what your job does there: decoding, cropping, tokenising.
#    At the top level of the file, so that loader processes can find the class by its name.
class Stripes(Dataset[Images]):
    """Noisy stripes in one of CLASSES directions, drawn when they are asked for."""

    def __init__(self, rows: int, pixels: int) -> None:
        self.rows = rows
        self.pixels = pixels

    def __len__(self) -> int:
        return self.rows

    def __getitem__(self, row: int) -> Images:
        return draw(row, make_grid(self.pixels))


def make_grid(pixels: int) -> Images:
    across, down = torch.meshgrid(torch.arange(pixels), torch.arange(pixels), indexing="xy")
    return across, down


def draw(row: int, grid: Images) -> Images:
    across, down = grid
    generator = torch.Generator().manual_seed(row)
    direction = row % CLASSES
    angle = math.pi * direction / CLASSES
    stripes = torch.sin(across * math.cos(angle) + down * math.sin(angle))
    noise = torch.rand(3, *across.shape, generator=generator)
    return stripes + noise, torch.tensor(direction)


# `data` is the file that the user named with --data, or None. Open yours here, once.
def open_stripes(size: Size, data: Path | None) -> Dataset[Images]:
    return Stripes(size.shape["rows"], size.shape["pixels"])


# 7. A change of yours that you want proven: `python -m diagnose optimize --workload ...` checks
#    that both sides give the same tensors, and then times them in turns.
def rows_side(text: str, make_rows: Callable[[Size], Callable[[int], Images]]) -> Side:
    def outcome(lab: Lab) -> dict[str, Tensor]:
        row = make_rows(lab.size)
        return {"per sample pictures": torch.stack([row(each)[0] for each in range(8)])}

    @contextmanager
    def trial(lab: Lab) -> Iterator[Trial]:
        row, batch = make_rows(lab.size), range(lab.size.batch_size)
        yield Trial(lambda: [row(each) for each in batch], samples_per_step=len(batch))

    return Side(text, outcome, trials={"batch": trial})


def grid_each_time(size: Size) -> Callable[[int], Images]:
    return lambda row: draw(row, make_grid(size.shape["pixels"]))


def grid_made_once(size: Size) -> Callable[[int], Images]:
    grid = make_grid(size.shape["pixels"])
    return lambda row: draw(row, grid)


GRID_ONCE = Optimization(
    key="grid_once",
    title="Make the grid of coordinates once",
    before=rows_side("in every row", grid_each_time),
    after=rows_side("once, for all rows", grid_made_once),
)


# 8. All parts together, under the name WORKLOAD. Only the first four are needed; without
#    `datasets` the data loading is not measured. Two ways to hold the data are two entries.
WORKLOAD = Workload(
    name="stripes",
    sizes=SIZES,
    model=Network(build=build, loss=loss, forward=forward),
    synthetic_batch=synthetic_batch,
    datasets={"dataset": open_stripes},
    learning_rate=1e-3,
    treatment=lambda: Treatment((GRID_ONCE,)),
)
