"""A small job that misbehaves on request: FAULT names what its training step does.

Inference and loading stay healthy, so a test can see that the other stages still run.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, IterableDataset, TensorDataset, get_worker_info

from diagnose.workload import Size
from tests.support.jobs.small import WIDTH, exhaust_memory, small_job, square

FAULT = os.environ.get("FAULT", "")
steps = 0


def misbehave() -> None:
    if FAULT == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif FAULT == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif FAULT == "file" and steps == 3:
        Path("/nowhere/at/all/weights.bin").read_bytes()
    elif FAULT == "memory":
        exhaust_memory()
    elif FAULT == "sleep":
        time.sleep(3600)
    elif FAULT == "print":
        print('{"stage": "not an answer"}', flush=True)


def loss(model: nn.Module, batch: Tensor) -> Tensor:
    global steps
    steps += model.training
    wait_here("training" if model.training else "inference")
    if model.training:
        misbehave()
    result = square(model, batch)
    if FAULT == "dict":
        return {"loss": result}  # type: ignore[return-value]
    return result * torch.nan if FAULT == "nan" else result


def wait_here(place: str) -> None:
    """Tell the test where we are, and stay."""
    if os.environ.get("WAIT_IN") == place:
        Path(os.environ["MARK"]).touch()
        time.sleep(3600)


class Rows(Dataset[Tensor]):
    def __len__(self) -> int:
        return 64

    def __getitem__(self, row: int) -> Tensor:
        wait_here("loading")
        if FAULT == "loader" and get_worker_info() is not None:
            os.kill(os.getpid(), signal.SIGKILL)
        if FAULT == "row" and get_worker_info() is not None:
            raise ValueError(f"row {row} is broken, see /nowhere/at/all/rows.csv")
        return torch.zeros(2**18 if FAULT == "shm" else WIDTH)


class Stream(IterableDataset[Tensor]):
    def __iter__(self) -> Iterator[Tensor]:
        yield torch.zeros(WIDTH)


def build(size: Size) -> nn.Module:
    return nn.Identity() if FAULT == "no parameters" else nn.Linear(WIDTH, WIDTH)


def open_rows(size: Size, data: Path | None) -> Dataset[Tensor]:
    if FAULT == "stream":
        return Stream()
    if FAULT == "few":
        rows: Dataset[Tensor] = TensorDataset(torch.zeros(1, WIDTH))  # type: ignore[assignment]
        return rows
    return Rows()


WORKLOAD = small_job(
    "faulty", Size(batch_size=4), build=build, loss=loss, datasets={"dataset": open_rows}
)
